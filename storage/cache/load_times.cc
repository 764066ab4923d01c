#include "storage/cache/load_times.h"

#include <algorithm>

#include "storage/base/status_macros.h"

namespace kvarve {

LoadTimes::Reading LoadTimes::Begin(uint32_t device, uint64_t bytes, int64_t now_nanos) {
  Device& of = devices_[device];
  const Reading reading{device, bytes, of.under_way_bytes, now_nanos};
  of.under_way_bytes += bytes;
  of.begun_nanos = now_nanos;
  of.under_way.insert(now_nanos);
  return reading;
}

void LoadTimes::End(const Reading& reading, int64_t end_nanos, bool is_good) {
  Device& of = devices_[reading.device];
  KV_CHECK(of.under_way_bytes >= reading.bytes);
  of.under_way_bytes -= reading.bytes;
  of.under_way.erase(of.under_way.find(reading.begin_nanos));
  if (!is_good) return;
  of.model.Observe(static_cast<double>(reading.bytes + reading.ahead_bytes),
                   static_cast<double>(end_nanos - reading.begin_nanos) / 1e9);
}

std::optional<double> LoadTimes::Seconds(const WantedBytes& wanted, int64_t now_nanos) const {
  double longest = 0;
  for (const auto& [device, bytes] : wanted) {
    const auto of = devices_.find(device);
    if (of == devices_.end()) return std::nullopt;
    const auto& under_way = of->second.under_way;
    const auto seconds =
        of->second.model.Seconds(static_cast<double>(of->second.under_way_bytes + bytes));
    if (!seconds.has_value() && under_way.empty()) return std::nullopt;
    const int64_t oldest = under_way.empty() ? now_nanos : *under_way.begin();
    longest =
        std::max({longest, seconds.value_or(0), static_cast<double>(now_nanos - oldest) / 1e9});
  }
  return longest;
}

bool LoadTimes::IsStale(uint32_t device, int64_t now_nanos) const {
  const auto of = devices_.find(device);
  return of == devices_.end() ||
         (of->second.under_way_bytes == 0 && now_nanos - of->second.begun_nanos > kStaleNanos);
}

}  // namespace kvarve
