// What the NVMe tier has and did.
// Values: THREADS: any.
#ifndef KVARVE_STORAGE_CACHE_DEVICE_STATS_H_
#define KVARVE_STORAGE_CACHE_DEVICE_STATS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "storage/cache/flights.h"
#include "storage/io/device.h"
#include "storage/policy/write_budget.h"
#include "storage/segment/segment_log.h"

namespace kvarve {

// Why a block that was put stays in the host tier only.
enum class NotAdmitted : uint8_t {
  kBudget = 0,  // the write budget's step, or its bucket is empty
  kParent = 1,  // the block before it is on no device
  kOff = 2,     // no device takes writes
  kQuota = 3,   // the tenant's bytes on devices
};
inline constexpr size_t kNotAdmitted = 4;
std::string_view NotAdmittedName(NotAdmitted reason);

// Why a block that was admitted is not on a device after all.
enum class GivenUp : uint8_t {
  kInvalidated = 0,  // its namespace, or it alone, meanwhile
  kDevice = 1,       // writing failed twice, or the device is off
  kFull = 2,         // no segment was free
  kTooLarge = 3,     // over what a segment holds
  kIndex = 4,        // no room in the index
};
inline constexpr size_t kGivenUp = 5;
std::string_view GivenUpName(GivenUp reason);

enum class DeviceState : uint8_t {
  kRecovering = 0,  // serves; not all of what it has is known yet
  kReady = 1,
  kWriteOff = 2,  // writing failed too often: read only until the next start
  kOff = 3,       // reading fails too: nothing of it is used
};
std::string_view DeviceStateName(DeviceState state);

struct DeviceStats {
  std::string path;
  std::string uuid;
  DeviceState state = DeviceState::kRecovering;
  IoBackend backend = IoBackend::kPosix;
  bool as_wanted = true;  // both the backend and `direct`
  bool direct = false;
  std::string fallback_reason;  // why not io_uring, why not direct; empty: both as wanted
  uint64_t capacity_bytes = 0;  // of its segments
  AdmissionStep step = AdmissionStep::kAll;
  bool budget_unlimited = false;
  double budget_bytes = 0;             // in the bucket
  double budget_bytes_per_second = 0;  // that fill it
  LogStats log;
  IoStats io;
};

struct DeviceTierStats {
  std::vector<DeviceStats> devices;
  uint64_t blocks = 0, bytes = 0;  // on devices, in whole pages
  uint64_t index_bytes = 0;        // of memory
  uint64_t dirty_blocks = 0, dirty_bytes = 0, dirty_bytes_max = 0;
  // Counters since the start.
  uint64_t admitted_blocks = 0, written_blocks = 0, written_bytes = 0;
  std::array<uint64_t, kNotAdmitted> not_admitted_blocks{};
  std::array<uint64_t, kGivenUp> given_up_blocks{};
  uint64_t shed_blocks = 0;
  uint64_t loads = 0;  // calls that had something to bring
  uint64_t loaded_blocks = 0, loaded_bytes = 0;
  uint64_t load_failed_blocks = 0;   // gone, damaged, or the device's error
  uint64_t load_no_room_blocks = 0;  // the host tier had no slot
  // Of the rung.
  uint64_t encoded_blocks = 0, encoded_saved_bytes = 0, kept_raw_blocks = 0;
  uint64_t decoded_blocks = 0, undecodable_blocks = 0;
  uint64_t unknown_form_blocks = 0;  // found at the start in a representation that is not known
  Flights::Stats flights;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_DEVICE_STATS_H_
