#include "services/kvarved/status_json.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace kvarve {
namespace {

using Json = nlohmann::ordered_json;

Json Ask(Admin* admin, const char* op) {
  const absl::StatusOr<std::string> answer =
      admin->Handle(std::string("{\"op\":\"") + op + "\"}", ::geteuid());
  return answer.ok() ? Json::parse(*answer) : Json::object();
}

Json SampleJson(const StatusSample& of) {
  return {{"time", of.unix_seconds},       {"lookup_keys", of.lookup_keys},
          {"found_keys", of.found_keys},   {"hit_blocks", of.hit_blocks},
          {"miss_blocks", of.miss_blocks}, {"hit_bytes", of.hit_bytes},
          {"put_bytes", of.put_bytes},     {"saved_seconds", of.saved_seconds},
          {"used_bytes", of.used_bytes},   {"nvme_bytes", of.nvme_bytes}};
}

Json SlowJson(const SlowRequestSeen& of) {
  return {{"time", of.unix_seconds}, {"type", of.type}, {"micros", of.micros},
          {"session", of.session},   {"uid", of.uid},   {"request_bytes", of.request_bytes}};
}

}  // namespace

std::string StatusPageJson(Admin* admin, const StatusHistory& history, const SlowRequests& slow,
                           const std::vector<SettingShown>& settings) {
  Json json = {{"now", UnixSecondsNow()},
               {"status", Ask(admin, "status")},
               {"stats", Ask(admin, "stats")},
               {"tenants", Ask(admin, "tenants")}};
  Json samples = Json::array(), requests = Json::array(), rows = Json::array();
  for (const StatusSample& sample : history.Samples()) samples.push_back(SampleJson(sample));
  for (const SlowRequestSeen& request : slow.Latest()) requests.push_back(SlowJson(request));
  for (const SettingShown& row : settings) {
    rows.push_back({{"name", row.name}, {"value", row.value}, {"origin", row.origin}});
  }
  json["history"] = std::move(samples);
  json["slow_requests"] = std::move(requests);
  json["settings"] = std::move(rows);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvarve
