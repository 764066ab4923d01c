// Fetch or recompute: blocks that a device would bring later than the engine computes them are left
// out of the answer.
#include <algorithm>

#include "storage/base/clock.h"
#include "storage/cache/cache_rep.h"
#include "storage/cache/device_tier.h"

namespace kvarve {
namespace {

constexpr uint64_t kLookAgainBytes = 4 << 20;

}  // namespace

size_t Cache::Rep::CutToCheaper(NamespaceHandle ns, std::span<const BlockKey> found, size_t in_host,
                                uint32_t recompute_us) {
  WantedBytes wanted;
  uint64_t block_bytes = 1;
  for (size_t begin = in_host; begin < found.size(); begin += kKeysPerHold) {
    const auto slice = found.subspan(begin, std::min(kKeysPerHold, found.size() - begin));
    MutexLock lock(&mutex);
    const NamespaceRecord& record = Record(ns);
    block_bytes = record.info.block_bytes;
    tier->AddWanted(record, slice, &wanted);
  }
  const double recompute_seconds =
      static_cast<double>(recompute_us) * static_cast<double>(found.size() - in_host) / 1e6;
  bool looks_again = false;
  {
    MutexLock lock(&mutex);
    const int64_t now = SystemClock::Get()->NowNanos();
    const std::optional<double> load_seconds = tier->load_times().Seconds(wanted, now);
    if (!load_seconds.has_value() || *load_seconds <= recompute_seconds) return found.size();
    counters.recompute_preferred_blocks += found.size() - in_host;
    looks_again = std::ranges::any_of(
        wanted, [&](const auto& of) { return tier->load_times().IsStale(of.first, now); });
  }
  // A device that is never read would never be seen to have become fast again: the begin of the run
  // comes, and nobody waits for it.
  if (looks_again) {
    const size_t blocks = std::max<size_t>(1, kLookAgainBytes / block_bytes);
    Load(ns, found.first(std::min(found.size(), in_host + blocks)), IoClass::kPrefetch,
         /*caller_waits=*/false, nullptr);
  }
  return in_host;
}

void DeviceTier::AddWanted(const NamespaceRecord& ns, std::span<const BlockKey> keys,
                           WantedBytes* wanted) const {
  for (const BlockKey& key : keys) {
    if (cache_.index->Find(ns.index, key) != kNoEntry) continue;
    const EntryId id = Find(ns, key);
    if (id == kNoEntry) continue;  // it has gone since it was found
    uint64_t& bytes = (*wanted)[index_.PlaceOf(id).device];
    if (!flights_.Has(ns.info.id, key)) bytes += index_.StoredOf(id).bytes;
  }
}

}  // namespace kvarve
