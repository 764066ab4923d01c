// Lives of a cache over a device, made of a seed: puts, reads from several threads, invalidations
// that meet what is on its way, failing reads, reclaiming, ends of every kind. Checked against what
// was put and taken away:
//  * no byte is wrong, and no block of one namespace is another's;
//  * what was invalidated is not found, in no later life either;
//  * what was complete on the device is found, as long as nothing is reclaimed;
//  * what a lookup finds on a device without faults comes, and whoever waits for it finds it;
//  * what was read from the device outlives laps of the ring, and what was not is not found;
//  * what is on its way is bounded.
// THREADS: one owner; it starts others.
#ifndef KVARVE_STORAGE_CACHE_DEVICE_LIFE_TESTING_H_
#define KVARVE_STORAGE_CACHE_DEVICE_LIFE_TESTING_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "storage/cache/devices_testing.h"
#include "storage/testing/seeded_random.h"

namespace kvarve::testing {

struct LifeOutcome {
  std::string failure;  // empty: all held
  uint64_t checked = 0, erased = 0, loaded = 0, joined = 0, reclaimed = 0, carried = 0;
  uint64_t decoded = 0;  // in lives that ended
};

class DeviceLife {
 public:
  static constexpr uint64_t kWide = 1024 * kMiBytes;  // Run does not fill it
  static constexpr uint64_t kNarrow = 128 * kMiBytes;

  DeviceLife(uint64_t seed, PlantedTierBug bug, uint64_t device_bytes,
             Representation rung = Representation::kRaw);
  LifeOutcome Run(int lives, int steps);
  // Writes the device over, half of it in a lap.
  LifeOutcome RunLaps(int laps);

 private:
  static constexpr size_t kChainBlocks = 8;
  static constexpr size_t kSpaces = 2;
  using Name = std::tuple<size_t, uint64_t, size_t>;  // namespace, chain, place in it
  struct Known {
    bool is_durable = false;
    bool is_erased = false;
  };

  void Fail(const std::string& what);
  bool failed();
  void Open();
  void Step();
  void Put(size_t space, uint64_t chain);
  void Settle();  // waits for the device; notes what is durable
  void Overtake();
  void EraseKeys();
  void FillUp();  // what is on its way, while the device takes nothing
  void ReadTogether();
  void Lap(uint64_t hot);
  void End();
  void Check(const Name& name, const Known& known);
  void CheckAll();
  // How many leading blocks come; wrong bytes are a failure.
  size_t Read(size_t space, std::span<const BlockKey> keys);
  void NoteErased(size_t space);
  void EvictAll() { node_.cache().Evict(1ull << 40, ""); }
  std::vector<BlockKey> Chain(uint64_t chain) const { return KeyChain(chain, kChainBlocks); }

  const uint64_t seed_;
  const uint64_t device_bytes_;
  SeededRandom random_;
  const Representation rung_;
  TestNode node_;
  NamespaceInfo spaces_[kSpaces];
  std::map<Name, Known> known_;
  uint64_t next_chain_ = 1;
  int life_ = 0;
  int vanished_ = 0;       // between being found and being read
  bool preloads_ = false;  // since a polite stop
  LeaseAccount account_;
  Mutex mutex_;
  LifeOutcome outcome_;  // its failure: under the mutex
};

}  // namespace kvarve::testing

#endif  // KVARVE_STORAGE_CACHE_DEVICE_LIFE_TESTING_H_
