#include "storage/policy/yardsticks.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <list>
#include <set>
#include <tuple>
#include <vector>

#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

// Runs `access(ids of a request)` after counting its leading hits.
template <typename Has, typename Access>
double HitRatioOf(const Trace& trace, Has has, Access access) {
  uint64_t hits = 0;
  std::vector<uint32_t> ids;
  for (const TraceRequest& request : trace.requests) {
    ids.clear();
    for (const uint32_t block : request.blocks) ids.push_back(trace.ids[block]);
    for (size_t i = 0; i < ids.size() && has(ids[i]); ++i) ++hits;
    access(ids);
  }
  return trace.references == 0 ? 0
                               : static_cast<double>(hits) / static_cast<double>(trace.references);
}

class S3Fifo {
 public:
  S3Fifo(uint32_t ids, uint64_t capacity)
      : capacity_(capacity),
        small_share_(std::max<uint64_t>(1, capacity / 10)),
        places_(ids),
        freqs_(ids),
        ghost_counts_(ids) {}

  bool Has(uint32_t id) const { return places_[id] != kGone; }

  void Access(uint32_t id) {
    if (Has(id)) {
      freqs_[id] = static_cast<uint8_t>(std::min(freqs_[id] + 1, 3));
      return;
    }
    while (small_.size() + main_.size() >= capacity_) {
      if (small_.size() >= small_share_ || main_.empty()) {
        EvictSmall();
      } else {
        EvictMain();
      }
    }
    freqs_[id] = 0;
    if (ghost_counts_[id] > 0) {
      main_.push_front(id);
      places_[id] = kInMain;
    } else {
      small_.push_front(id);
      places_[id] = kInSmall;
    }
  }

 private:
  enum Place : uint8_t { kGone, kInSmall, kInMain };

  void EvictMain() {
    while (!main_.empty()) {
      const uint32_t id = main_.back();
      main_.pop_back();
      if (freqs_[id] == 0) {
        places_[id] = kGone;
        return;
      }
      --freqs_[id];
      main_.push_front(id);
    }
  }

  void EvictSmall() {
    while (!small_.empty()) {
      const uint32_t id = small_.back();
      small_.pop_back();
      if (freqs_[id] <= 1) {
        places_[id] = kGone;
        ghosts_.push_front(id);
        ++ghost_counts_[id];
        if (ghosts_.size() > capacity_) {
          --ghost_counts_[ghosts_.back()];
          ghosts_.pop_back();
        }
        return;
      }
      freqs_[id] = 0;
      main_.push_front(id);
      places_[id] = kInMain;
      if (main_.size() > capacity_ - small_share_) EvictMain();
    }
  }

  const uint64_t capacity_, small_share_;
  std::deque<uint32_t> small_, main_, ghosts_;  // the newest in front
  std::vector<Place> places_;
  std::vector<uint8_t> freqs_;
  std::vector<uint32_t> ghost_counts_;
};

}  // namespace

double LruHitRatio(const Trace& trace, uint64_t capacity, bool leaf_first) {
  KV_CHECK(capacity > 0);
  std::list<uint32_t> order;  // the most recent in front
  std::vector<std::list<uint32_t>::iterator> places(trace.unique_ids, order.end());
  const auto touch = [&](uint32_t id) {
    if (places[id] != order.end()) {
      order.splice(order.begin(), order, places[id]);
      return;
    }
    order.push_front(id);
    places[id] = order.begin();
    if (order.size() <= capacity) return;
    places[order.back()] = order.end();
    order.pop_back();
  };
  return HitRatioOf(
      trace, [&](uint32_t id) { return places[id] != order.end(); },
      [&](const std::vector<uint32_t>& ids) {
        if (leaf_first) {
          for (size_t i = ids.size(); i-- > 0;) touch(ids[i]);
        } else {
          for (const uint32_t id : ids) touch(id);
        }
      });
}

double S3FifoHitRatio(const Trace& trace, uint64_t capacity) {
  KV_CHECK(capacity > 0);
  S3Fifo cache(trace.unique_ids, capacity);
  return HitRatioOf(
      trace, [&](uint32_t id) { return cache.Has(id); },
      [&](const std::vector<uint32_t>& ids) {
        for (size_t i = ids.size(); i-- > 0;) cache.Access(ids[i]);
      });
}

double BeladyHitRatio(const Trace& trace, uint64_t capacity) {
  KV_CHECK(capacity > 0);
  std::vector<std::vector<uint32_t>> uses(trace.unique_ids);  // requests, ascending
  for (uint32_t n = 0; n < trace.requests.size(); ++n) {
    for (const uint32_t block : trace.requests[n].blocks) {
      std::vector<uint32_t>& of_id = uses[trace.ids[block]];
      if (of_id.empty() || of_id.back() != n) of_id.push_back(n);
    }
  }
  using Kept = std::tuple<uint32_t, uint32_t, uint32_t>;  // next use, depth, id
  std::set<Kept> kept;
  std::vector<std::set<Kept>::iterator> places(trace.unique_ids, kept.end());
  std::vector<size_t> passed(trace.unique_ids);
  uint32_t now = 0;
  return HitRatioOf(
      trace, [&](uint32_t id) { return places[id] != kept.end(); },
      [&](const std::vector<uint32_t>& ids) {
        for (uint32_t depth = 0; depth < ids.size(); ++depth) {
          const uint32_t id = ids[depth];
          if (places[id] != kept.end()) kept.erase(std::exchange(places[id], kept.end()));
          while (passed[id] < uses[id].size() && uses[id][passed[id]] <= now) ++passed[id];
          if (passed[id] == uses[id].size()) continue;
          places[id] = kept.emplace(uses[id][passed[id]], depth, id).first;
          if (kept.size() <= capacity) continue;
          places[std::get<2>(*kept.rbegin())] = kept.end();
          kept.erase(std::prev(kept.end()));
        }
        ++now;
      });
}

}  // namespace kvarve
