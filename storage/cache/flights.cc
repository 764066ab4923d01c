#include "storage/cache/flights.h"

#include <algorithm>

#include "storage/base/status_macros.h"

namespace kvarve {

Flights::Joined Flights::Join(const NamespaceId& ns, const BlockKey& key, WaiterId waiter,
                              Landed landed) {
  MutexLock lock(&mutex_);
  const auto it = flights_.find({ns, key.bytes});
  const bool begins = it == flights_.end();
  if (begins ? flights_.size() >= limits_.flights : it->second.size() >= limits_.waiters) {
    ++stats_.refused;
    return Joined::kRefused;
  }
  std::vector<Waiter>& waiters = begins ? flights_[{ns, key.bytes}] : it->second;
  waiters.push_back({waiter, std::move(landed)});
  ++stats_.waiting;
  ++(begins ? stats_.begun : stats_.joined);
  return begins ? Joined::kLeads : Joined::kWaits;
}

bool Flights::Has(const NamespaceId& ns, const BlockKey& key) const {
  MutexLock lock(&mutex_);
  return !flights_.empty() && flights_.contains({ns, key.bytes});
}

// The flight is gone before anybody is told: who asks from then on finds the block, or begins anew.
void Flights::Land(const NamespaceId& ns, const BlockKey& key, bool loaded) {
  std::vector<Waiter> waiters;
  {
    MutexLock lock(&mutex_);
    const auto it = flights_.find({ns, key.bytes});
    KV_CHECK(it != flights_.end());
    waiters = std::move(it->second);
    flights_.erase(it);
    stats_.waiting -= waiters.size();
    stats_.failed += loaded ? 0 : 1;
    for (const Waiter& waiter : waiters) ++telling_[waiter.id];
  }
  for (const Waiter& waiter : waiters) {
    waiter.landed(loaded);
    MutexLock lock(&mutex_);
    const auto it = telling_.find(waiter.id);
    if (--it->second > 0) continue;
    telling_.erase(it);
    told_.notify_all();
  }
}

size_t Flights::Cancel(WaiterId waiter) {
  MutexLock lock(&mutex_);
  size_t taken = 0;
  for (auto& [name, waiters] : flights_) {
    taken += std::erase_if(waiters, [&](const Waiter& of) { return of.id == waiter; });
  }
  stats_.waiting -= taken;
  stats_.cancelled += taken;
  while (telling_.contains(waiter)) told_.wait(mutex_);
  return taken;
}

Flights::Stats Flights::stats() const {
  MutexLock lock(&mutex_);
  Stats stats = stats_;
  stats.flights = flights_.size();
  return stats;
}

}  // namespace kvarve
