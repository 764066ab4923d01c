#include "services/kvarved/admin_devices.h"

#include <algorithm>
#include <string>

namespace kvarve {
namespace {

using Json = nlohmann::ordered_json;

// Names and numbers of a counter that is kept by reason; zeros are left out.
template <typename Reason, size_t kCount>
Json ByReason(const std::array<uint64_t, kCount>& counts, std::string_view (*name)(Reason)) {
  Json json = Json::object();
  for (size_t i = 0; i < kCount; ++i) {
    if (counts[i] > 0) json[std::string(name(static_cast<Reason>(i)))] = counts[i];
  }
  return json;
}

uint64_t SlotsInUse(const LogStats& log) {
  uint64_t slots = 0;
  for (int i = 0; i < kSlotStates; ++i) {
    if (i != static_cast<int>(SlotState::kFree)) slots += log.slots[i];
  }
  return slots;
}

}  // namespace

Json DeviceStatusJson(const DeviceTierStats& stats) {
  Json devices = Json::array();
  for (const DeviceStats& of : stats.devices) {
    Json device = {{"path", of.path},
                   {"uuid", of.uuid},
                   {"state", std::string(DeviceStateName(of.state))},
                   {"backend", std::string(IoBackendName(of.backend))},
                   {"direct", of.direct},
                   {"capacity_bytes", of.capacity_bytes},
                   {"segments_in_use", SlotsInUse(of.log)},
                   {"segment_bytes", of.log.segment_bytes}};
    if (!of.fallback_reason.empty()) device["fallback_reason"] = of.fallback_reason;
    if (!of.budget_unlimited) {
      device["budget_step"] = std::string(AdmissionStepName(of.step));
      device["budget_bytes"] = static_cast<int64_t>(of.budget_bytes);
    }
    devices.push_back(std::move(device));
  }
  const bool is_recovering = std::ranges::any_of(
      stats.devices, [](const DeviceStats& of) { return of.state == DeviceState::kRecovering; });
  return {{"recovered", !is_recovering},
          {"blocks", stats.blocks},
          {"bytes", stats.bytes},
          {"index_bytes", stats.index_bytes},
          {"dirty_bytes", stats.dirty_bytes},
          {"dirty_bytes_max", stats.dirty_bytes_max},
          {"devices", std::move(devices)}};
}

Json DeviceCountersJson(const DeviceTierStats& stats) {
  Json json = {{"admitted_blocks", stats.admitted_blocks},
               {"written_blocks", stats.written_blocks},
               {"written_bytes", stats.written_bytes},
               {"not_admitted_blocks", ByReason(stats.not_admitted_blocks, NotAdmittedName)},
               {"given_up_blocks", ByReason(stats.given_up_blocks, GivenUpName)},
               {"shed_blocks", stats.shed_blocks},
               {"encoded_blocks", stats.encoded_blocks},
               {"encoded_saved_bytes", stats.encoded_saved_bytes},
               {"kept_raw_blocks", stats.kept_raw_blocks},
               {"decoded_blocks", stats.decoded_blocks},
               {"undecodable_blocks", stats.undecodable_blocks},
               {"unknown_form_blocks", stats.unknown_form_blocks},
               {"loads", stats.loads},
               {"loaded_blocks", stats.loaded_blocks},
               {"loaded_bytes", stats.loaded_bytes},
               {"load_failed_blocks", stats.load_failed_blocks},
               {"load_no_room_blocks", stats.load_no_room_blocks},
               {"joined_loads", stats.flights.joined}};
  Json devices = Json::array();
  for (const DeviceStats& of : stats.devices) {
    devices.push_back({{"path", of.path},
                       {"device_bytes_written", of.log.device_bytes},
                       {"block_bytes_written", of.log.appended_bytes},
                       {"segments_sealed", of.log.segments_sealed},
                       {"segments_reclaimed", of.log.segments_reclaimed},
                       {"reinserted_bytes", of.log.reinserted_bytes},
                       {"read_bytes", of.log.read_bytes},
                       {"read_errors", of.log.read_errors},
                       {"write_failures", of.log.write_failures},
                       {"corrupt_blocks", of.log.corrupt_blocks},
                       {"recovered_blocks", of.log.recovered_records},
                       {"scrubbed_bytes", of.log.scrubbed_bytes},
                       {"scrub_failures", of.log.scrub_failures}});
  }
  json["devices"] = std::move(devices);
  return json;
}

}  // namespace kvarve
