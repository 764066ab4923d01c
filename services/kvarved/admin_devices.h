// What administration says of the NVMe tier. Private to services/kvarved.
// THREADS: any.
#ifndef KVARVE_SERVICES_KVARVED_ADMIN_DEVICES_H_
#define KVARVE_SERVICES_KVARVED_ADMIN_DEVICES_H_

#include <nlohmann/json.hpp>

#include "storage/cache/device_stats.h"

namespace kvarve {

// What the tier has: sizes, and each device's state.
nlohmann::ordered_json DeviceStatusJson(const DeviceTierStats& stats);
// What it did since the start.
nlohmann::ordered_json DeviceCountersJson(const DeviceTierStats& stats);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_KVARVED_ADMIN_DEVICES_H_
