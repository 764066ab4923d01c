// How long blocks that lie on devices would take to come, by what each device did of late and has
// to do. Private to storage/cache.
//
// THREADS: externally synchronised (the cache's mutex).  BLOCKS: never.
#ifndef KVARVE_STORAGE_CACHE_LOAD_TIMES_H_
#define KVARVE_STORAGE_CACHE_LOAD_TIMES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "storage/policy/load_model.h"

namespace kvarve {

// What a load needs of each device: bytes that nobody has asked for yet. 0 is an entry, too: all of
// it is on its way.
using WantedBytes = std::map<uint32_t, uint64_t>;

class LoadTimes {
 public:
  struct Reading {
    uint32_t device = 0;
    uint64_t bytes = 0;
    uint64_t ahead_bytes = 0;  // asked for before
    int64_t begin_nanos = 0;
  };
  Reading Begin(uint32_t device, uint64_t bytes, int64_t now_nanos);
  // `is_good`: it brought all its bytes; else it says nothing of the device's speed.
  void End(const Reading& reading, int64_t end_nanos, bool is_good);

  // Until the last byte. None: too little is known of one of the devices. Of one that has not
  // brought yet what it was asked for long ago as much is known: it takes at least so long now,
  // whatever it did before.
  std::optional<double> Seconds(const WantedBytes& wanted, int64_t now_nanos) const;
  // Nothing was learned of the device for so long.
  bool IsStale(uint32_t device, int64_t now_nanos) const;

  static constexpr int64_t kStaleNanos = 1'000'000'000;

 private:
  struct Device {
    LoadModel model;
    uint64_t under_way_bytes = 0;
    int64_t begun_nanos = 0;           // the last reading
    std::multiset<int64_t> under_way;  // when each began
  };
  std::map<uint32_t, Device> devices_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CACHE_LOAD_TIMES_H_
