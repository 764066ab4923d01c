// Metrics of the NVMe tier; none while there are no devices.
#include "services/metrics/metric.h"

namespace kvarve {
namespace {

using prometheus::MetricType;
using Snapshot = const MetricsSnapshot&;
using Out = Samples&;

constexpr MetricType kCounter = MetricType::Counter;
constexpr MetricType kGauge = MetricType::Gauge;

// A number of each device's log.
template <uint64_t LogStats::*member>
void OfLogs(Snapshot s, Out out) {
  if (!s.cache.devices.has_value()) return;
  for (const DeviceStats& device : s.cache.devices->devices) {
    out.Add(device.log.*member, {{"device", device.path}});
  }
}

// A number of the tier.
template <uint64_t DeviceTierStats::*member>
void OfTier(Snapshot s, Out out) {
  if (s.cache.devices.has_value()) out.Add((*s.cache.devices).*member);
}

void CollectIo(Snapshot s, Out out, uint64_t IoStats::Counters::*member) {
  if (!s.cache.devices.has_value()) return;
  for (const DeviceStats& device : s.cache.devices->devices) {
    for (int io_class = 0; io_class < kIoClasses; ++io_class) {
      for (int op = 0; op < kIoOps; ++op) {
        const IoStats::Counters& of = device.io.of[io_class][op];
        if (of.requests == 0) continue;
        out.Add(of.*member, {{"device", device.path},
                             {"class", std::string(IoClassName(static_cast<IoClass>(io_class)))},
                             {"op", std::string(IoOpName(static_cast<IoOp>(op)))}});
      }
    }
  }
}

const Metric kDeviceMetrics[] = {
    {"kvarve_nvme_device_state", kGauge, "device, state",
     "1 for the state that the device is in: recovering, ready, write_off (read only until the "
     "next "
     "start), off.",
     [](Snapshot s, Out out) {
       if (!s.cache.devices.has_value()) return;
       for (const DeviceStats& device : s.cache.devices->devices) {
         out.Add(1.0,
                 {{"device", device.path}, {"state", std::string(DeviceStateName(device.state))}});
       }
     }},
    {"kvarve_io_backend", kGauge, "device, backend, direct, as_wanted",
     "Always 1. as_wanted false: io_uring was to be used and is forbidden here (backend posix), or "
     "the filesystem has no O_DIRECT (direct false).",
     [](Snapshot s, Out out) {
       if (!s.cache.devices.has_value()) return;
       for (const DeviceStats& device : s.cache.devices->devices) {
         out.Add(1.0, {{"device", device.path},
                       {"backend", std::string(IoBackendName(device.backend))},
                       {"direct", device.direct ? "true" : "false"},
                       {"as_wanted", device.as_wanted ? "true" : "false"}});
       }
     }},
    {"kvarve_nvme_capacity_bytes", kGauge, "device", "Bytes of the device's segments.",
     [](Snapshot s, Out out) {
       if (!s.cache.devices.has_value()) return;
       for (const DeviceStats& device : s.cache.devices->devices) {
         out.Add(device.capacity_bytes, {{"device", device.path}});
       }
     }},
    {"kvarve_nvme_bytes", kGauge, "", "Bytes of the blocks that are found on devices.",
     OfTier<&DeviceTierStats::bytes>},
    {"kvarve_nvme_blocks", kGauge, "", "Blocks that are found on devices.",
     OfTier<&DeviceTierStats::blocks>},
    {"kvarve_nvme_index_bytes", kGauge, "", "Memory of their index.",
     OfTier<&DeviceTierStats::index_bytes>},
    {"kvarve_nvme_dirty_bytes", kGauge, "", "Bytes on their way to devices.",
     OfTier<&DeviceTierStats::dirty_bytes>},
    {"kvarve_nvme_dirty_bytes_max", kGauge, "", "Beyond so many, puts are shed.",
     OfTier<&DeviceTierStats::dirty_bytes_max>},
    {"kvarve_nvme_written_blocks_total", kCounter, "", "Blocks that are complete on a device.",
     OfTier<&DeviceTierStats::written_blocks>},
    {"kvarve_nvme_written_bytes_total", kCounter, "", "Bytes of those blocks, as they are stored.",
     OfTier<&DeviceTierStats::written_bytes>},
    {"kvarve_nvme_device_written_bytes_total", kCounter, "device",
     "Bytes written to the device, with descriptors, footers and blocks carried on: over the bytes "
     "of blocks it is the write amplification.",
     OfLogs<&LogStats::device_bytes>},
    {"kvarve_nvme_encoded_blocks_total", kCounter, "",
     "Blocks that got the form of nvme.rung on their way to a device.",
     OfTier<&DeviceTierStats::encoded_blocks>},
    {"kvarve_nvme_encoded_saved_bytes_total", kCounter, "",
     "Bytes, in whole pages, that they take less on devices.",
     OfTier<&DeviceTierStats::encoded_saved_bytes>},
    {"kvarve_nvme_kept_raw_blocks_total", kCounter, "",
     "Blocks that stayed raw since that form would not have saved a page.",
     OfTier<&DeviceTierStats::kept_raw_blocks>},
    {"kvarve_nvme_decoded_blocks_total", kCounter, "",
     "Blocks that came from devices in another form than raw.",
     OfTier<&DeviceTierStats::decoded_blocks>},
    {"kvarve_nvme_undecodable_blocks_total", kCounter, "reason",
     "Blocks that are misses for their form: damaged (they did not decode to what was put), "
     "unknown "
     "(a form that this version does not know, found at the start).",
     [](Snapshot s, Out out) {
       if (!s.cache.devices.has_value()) return;
       out.Add(s.cache.devices->undecodable_blocks, {{"reason", "damaged"}});
       out.Add(s.cache.devices->unknown_form_blocks, {{"reason", "unknown"}});
     }},
    {"kvarve_nvme_admit_dropped_total", kCounter, "reason",
     "Blocks put that stay in memory only: budget (drive writes a day), parent (the block before "
     "is "
     "on no device), off (no device takes writes), quota.",
     [](Snapshot s, Out out) {
       if (!s.cache.devices.has_value()) return;
       for (size_t i = 0; i < kNotAdmitted; ++i) {
         out.Add(s.cache.devices->not_admitted_blocks[i],
                 {{"reason", std::string(NotAdmittedName(static_cast<NotAdmitted>(i)))}});
       }
     }},
    {"kvarve_nvme_given_up_blocks_total", kCounter, "reason",
     "Blocks that were to be written and are not: invalidated meanwhile, device (writing failed "
     "twice), full (no segment free), too_large, index (no room).",
     [](Snapshot s, Out out) {
       if (!s.cache.devices.has_value()) return;
       for (size_t i = 0; i < kGivenUp; ++i) {
         out.Add(s.cache.devices->given_up_blocks[i],
                 {{"reason", std::string(GivenUpName(static_cast<GivenUp>(i)))}});
       }
     }},
    {"kvarve_nvme_shed_blocks_total", kCounter, "", "Blocks of puts that were asked to try again.",
     OfTier<&DeviceTierStats::shed_blocks>},
    {"kvarve_nvme_loaded_blocks_total", kCounter, "", "Blocks brought from devices into memory.",
     OfTier<&DeviceTierStats::loaded_blocks>},
    {"kvarve_nvme_loaded_bytes_total", kCounter, "", "Bytes of those blocks.",
     OfTier<&DeviceTierStats::loaded_bytes>},
    {"kvarve_nvme_load_misses_total", kCounter, "reason",
     "Blocks found on a device that did not come: failed (gone, damaged or the device's error), "
     "no_room (in memory).",
     [](Snapshot s, Out out) {
       if (!s.cache.devices.has_value()) return;
       out.Add(s.cache.devices->load_failed_blocks, {{"reason", "failed"}});
       out.Add(s.cache.devices->load_no_room_blocks, {{"reason", "no_room"}});
     }},
    {"kvarve_nvme_loads_in_flight", kGauge, "", "Blocks being read from devices for somebody.",
     [](Snapshot s, Out out) {
       if (s.cache.devices.has_value()) out.Add(s.cache.devices->flights.flights);
     }},
    {"kvarve_nvme_corrupt_blocks_total", kCounter, "device",
     "Blocks read from a device whose bytes did not match their checksum; misses.",
     OfLogs<&LogStats::corrupt_blocks>},
    {"kvarve_nvme_read_errors_total", kCounter, "device", "Reads that the device failed.",
     OfLogs<&LogStats::read_errors>},
    {"kvarve_nvme_write_failures_total", kCounter, "device", "Writes and syncs that it failed.",
     OfLogs<&LogStats::write_failures>},
    {"kvarve_nvme_segments", kGauge, "device, state", "Slots for segments, by state.",
     [](Snapshot s, Out out) {
       if (!s.cache.devices.has_value()) return;
       for (const DeviceStats& device : s.cache.devices->devices) {
         for (int i = 0; i < kSlotStates; ++i) {
           out.Add(device.log.slots[i],
                   {{"device", device.path},
                    {"state", std::string(SlotStateName(static_cast<SlotState>(i)))}});
         }
       }
     }},
    {"kvarve_nvme_segments_reclaimed_total", kCounter, "device", "Segments that ended.",
     OfLogs<&LogStats::segments_reclaimed>},
    {"kvarve_nvme_reinserted_bytes_total", kCounter, "device",
     "Bytes of blocks carried on from segments that ended.", OfLogs<&LogStats::reinserted_bytes>},
    {"kvarve_nvme_scrubbed_bytes_total", kCounter, "device", "Bytes verified while idle.",
     OfLogs<&LogStats::scrubbed_bytes>},
    {"kvarve_nvme_budget_bytes", kGauge, "device",
     "Bytes that may be written now within nvme.drive_writes_per_day.",
     [](Snapshot s, Out out) {
       if (!s.cache.devices.has_value()) return;
       for (const DeviceStats& device : s.cache.devices->devices) {
         if (!device.budget_unlimited) out.Add(device.budget_bytes, {{"device", device.path}});
       }
     }},
    {"kvarve_nvme_io_requests_total", kCounter, "device, class, op",
     "Requests to devices, by urgency.",
     [](Snapshot s, Out out) { CollectIo(s, out, &IoStats::Counters::requests); }},
    {"kvarve_nvme_io_bytes_total", kCounter, "device, class, op", "Bytes that they moved.",
     [](Snapshot s, Out out) { CollectIo(s, out, &IoStats::Counters::bytes); }},
    {"kvarve_catalogue_errors_total", kCounter, "device",
     "Writes of the catalogue that failed; starts are slower then.",
     OfLogs<&LogStats::catalogue_errors>},
};

}  // namespace

std::span<const Metric> DeviceMetrics() { return kDeviceMetrics; }

}  // namespace kvarve
