#include "storage/cache/device_life_testing.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve::testing {
namespace {

constexpr uint64_t kDirtyBytes = 8 * kMiBytes;
constexpr size_t kReaders = 3;
// What reclaiming may take in the moment between a lookup and a read.
constexpr int kVanishedMax = 3;

NodeOptions OptionsOf(PlantedTierBug bug, uint64_t device_bytes, Representation rung) {
  NodeOptions options;
  // A device is several times as large as the host tier: what that has is carried on, too.
  options.host_bytes = std::min(48 * kMiBytes, device_bytes / 4);
  options.device_bytes = device_bytes;
  options.segment_bytes = 4 * kMiBytes;
  options.dirty_bytes = kDirtyBytes;
  options.bug = bug;
  options.rung = rung;
  return options;
}

}  // namespace

DeviceLife::DeviceLife(uint64_t seed, PlantedTierBug bug, uint64_t device_bytes,
                       Representation rung)
    : seed_(seed),
      device_bytes_(device_bytes),
      random_(seed),
      rung_(rung),
      node_(OptionsOf(bug, device_bytes, rung)) {}

void DeviceLife::Fail(const std::string& what) {
  MutexLock lock(&mutex_);
  if (outcome_.failure.empty()) {
    outcome_.failure = absl::StrFormat("seed %d, life %d: %s", seed_, life_, what);
  }
}

bool DeviceLife::failed() {
  MutexLock lock(&mutex_);
  return !outcome_.failure.empty();
}

LifeOutcome DeviceLife::Run(int lives, int steps) {
  Open();
  for (life_ = 0; life_ < lives && !failed(); ++life_) {
    for (int step = 0; step < steps && !failed(); ++step) Step();
    if (!failed()) End();
  }
  return outcome_;
}

LifeOutcome DeviceLife::RunLaps(int laps) {
  Open();
  const uint64_t hot = next_chain_++;
  Put(0, hot);
  Settle();
  for (int lap = 0; lap < laps && !failed(); ++lap) Lap(hot);
  const DeviceTierStats stats = node_.Stats();
  outcome_.reclaimed = stats.devices[0].log.segments_reclaimed;
  outcome_.carried = stats.devices[0].log.reinserted_blocks;
  return outcome_;
}

// The second namespace first, so that the order of opening says nothing.
void DeviceLife::Open() {
  spaces_[1] = node_.Open("other");
  spaces_[0] = node_.Open("model");
}

void DeviceLife::Step() {
  switch (random_.Below(10)) {
    case 0:
      return Settle();
    case 1:
      return Overtake();
    case 2:
      return EraseKeys();
    case 3:
      return FillUp();
    case 4:
    case 5:
    case 6:
      return ReadTogether();
    default:
      for (uint64_t n = 1 + random_.Below(3); n > 0; --n) {
        const bool is_new = next_chain_ < 4 || random_.Below(3) > 0;
        Put(random_.Below(kSpaces), is_new ? next_chain_++ : 1 + random_.Below(next_chain_ - 1));
      }
  }
}

void DeviceLife::Put(size_t space, uint64_t chain) {
  const std::vector<BlockKey> keys = Chain(chain);
  if (node_.PutAll(spaces_[space], keys) != keys.size()) return Fail("a put was not stored");
  for (size_t i = 0; i < keys.size(); ++i) known_[{space, chain, i}].is_erased = false;
}

// What is found without the host tier's help is on the device.
void DeviceLife::Settle() {
  if (!node_.WaitDevices()) return Fail("the device did not become idle");
  const DeviceTierStats stats = node_.Stats();
  for (size_t i = 0; i < kGivenUp; ++i) {
    const auto reason = static_cast<GivenUp>(i);
    if (reason == GivenUp::kInvalidated || stats.given_up_blocks[i] == 0) continue;
    Fail(absl::StrFormat("%d blocks were given up: %s", stats.given_up_blocks[i],
                         GivenUpName(reason)));
  }
  EvictAll();
  for (auto& [name, known] : known_) {
    const auto& [space, chain, at] = name;
    const BlockKey key = Chain(chain)[at];
    known.is_durable = node_.cache().Lookup(spaces_[space].handle, {&key, 1}) == 1;
  }
}

void DeviceLife::NoteErased(size_t space) {
  for (auto& [name, known] : known_) {
    if (std::get<0>(name) == space) known = {false, true};
  }
}

// Some blocks are being written, some are queued behind them, and their namespace goes.
void DeviceLife::Overtake() {
  if (!node_.WaitDevices()) return Fail("the device did not become idle");
  const size_t space = random_.Below(kSpaces);
  const NamespaceInfo& ns = spaces_[space];
  node_.faults().Set(&DeviceFaults::hold_writes, true);
  const uint64_t first = next_chain_++, second = next_chain_++;
  Put(space, first);
  const auto holds = [this] {
    MutexLock lock(&node_.faults().mutex);
    return !node_.faults().held.empty();
  };
  while (!holds()) std::this_thread::yield();
  Put(space, second);
  std::thread invalidates([&] { node_.cache().Invalidate(ns.handle); });
  const std::vector<BlockKey> keys = Chain(second);
  while (node_.cache().Lookup(ns.handle, keys) != 0) std::this_thread::yield();
  node_.faults().ReleaseWrites();
  invalidates.join();
  NoteErased(space);
  ++outcome_.erased;
  if (!node_.WaitDevices()) return Fail("the device did not become idle");
  for (const uint64_t chain : {first, second}) {
    for (size_t i = 0; i < kChainBlocks; ++i) {
      Check({space, chain, i}, known_[{space, chain, i}]);
    }
  }
}

void DeviceLife::EraseKeys() {
  if (next_chain_ < 2) return;
  const size_t space = random_.Below(kSpaces), from = random_.Below(kChainBlocks);
  const uint64_t chain = 1 + random_.Below(next_chain_ - 1);
  const std::vector<BlockKey> keys = Chain(chain);
  node_.cache().InvalidateKeys(spaces_[space].handle, std::span(keys).subspan(from));
  for (size_t i = from; i < keys.size(); ++i) known_[{space, chain, i}] = {false, true};
  ++outcome_.erased;
}

void DeviceLife::FillUp() {
  if (!node_.WaitDevices()) return Fail("the device did not become idle");
  node_.faults().Set(&DeviceFaults::hold_writes, true);
  std::vector<std::pair<size_t, uint64_t>> shed;
  for (uint64_t bytes = 0; bytes < 2 * kDirtyBytes; bytes += kChainBlocks * kTestBlock) {
    const uint64_t chain = next_chain_++;
    const std::vector<PutResult> results = node_.Put(spaces_[0], Chain(chain));
    if (results.back() != PutResult::kStored) shed.emplace_back(0, chain);
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i] == PutResult::kStored) known_[{0, chain, i}] = {};
    }
    if (const uint64_t dirty = node_.Stats().dirty_bytes; dirty > kDirtyBytes) {
      Fail(absl::StrFormat("%d bytes are on their way, %d may be", dirty, kDirtyBytes));
    }
  }
  node_.faults().ReleaseWrites();
  for (const auto& [space, chain] : shed) Put(space, chain);
}

size_t DeviceLife::Read(size_t space, std::span<const BlockKey> keys) {
  const NamespaceInfo& ns = spaces_[space];
  const AcquireResult found = node_.cache().Acquire(ns.handle, keys, &account_, 0);
  for (size_t i = 0; i < found.grants.size(); ++i) {
    const std::span block(node_.cache().Data(found.grants[i].slot), ns.block_bytes);
    const auto right = MakeMixedBlock(TestNode::SeedOf(ns), keys[i], block.size());
    if (!std::ranges::equal(right, block)) Fail("wrong bytes");
  }
  if (found.lease != 0) node_.cache().Release(found.lease, &account_);
  return found.grants.size();
}

// Several want the same chain at once, of a device that may fail.
void DeviceLife::ReadTogether() {
  if (next_chain_ < 2) return;
  const size_t space = random_.Below(kSpaces);
  const uint64_t chain = 1 + random_.Below(next_chain_ - 1);
  const NamespaceInfo& ns = spaces_[space];
  const std::vector<BlockKey> keys = Chain(chain);
  if (!node_.WaitDevices()) return Fail("the device did not become idle");
  EvictAll();
  const uint64_t fault = random_.Below(4);
  node_.faults().Set(&DeviceFaults::flip_reads, fault == 0);
  node_.faults().Set(&DeviceFaults::fail_reads, fault == 1);
  const size_t found = node_.cache().Lookup(ns.handle, keys);
  const uint64_t loaded_before = node_.Stats().loaded_blocks;
  std::vector<std::thread> readers;
  for (size_t r = 0; r < kReaders; ++r) {
    readers.emplace_back([&] {
      Mutex mutex;
      CondVar changed;
      bool done = false;
      node_.cache().Load(ns.handle, keys, IoClass::kDemand, [&](size_t loaded) {
        size_t here = 0;
        node_.cache().Lookup(ns.handle, keys, &here);
        if (loaded > here) Fail("a load tells of blocks that are not in memory");
        if (fault > 1 && loaded < found) Fail("a load brought less than a lookup had found");
        MutexLock lock(&mutex);
        done = true;
        changed.notify_all();
      });
      MutexLock lock(&mutex);
      while (!done) changed.wait(mutex);
    });
  }
  for (std::thread& reader : readers) reader.join();
  node_.faults().Set(&DeviceFaults::flip_reads, false);
  node_.faults().Set(&DeviceFaults::fail_reads, false);
  if (!preloads_ && node_.Stats().loaded_blocks - loaded_before > found) {
    Fail("a block was read twice");
  }
  Read(space, keys);
  if (fault > 1) return;
  for (size_t i = 0; i < keys.size(); ++i) known_[{space, chain, i}].is_durable = false;
}

// Half of the ring is written over; what is read in every lap is carried on.
void DeviceLife::Lap(uint64_t hot) {
  const std::vector<BlockKey> keys = Chain(hot);
  EvictAll();
  if (node_.cache().LoadNow(spaces_[0].handle, keys, IoClass::kDemand) != keys.size()) {
    return Fail("what was read was not carried on");
  }
  constexpr uint64_t kChainBytes = kChainBlocks * kTestBlock;
  for (uint64_t bytes = 0; bytes < device_bytes_ / 2 && !failed(); bytes += kChainBytes) {
    Put(1, next_chain_++);
  }
  Settle();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!known_[{0, hot, i}].is_durable) return Fail("what was read was not carried on");
  }
  for (uint64_t chain = hot + 1; chain < next_chain_; ++chain) {
    const bool is_old = next_chain_ - chain > device_bytes_ / kChainBytes;
    if (is_old && known_[{1, chain, 0}].is_durable) Fail("what nobody read outlived the ring");
    Check({1, chain, kChainBlocks - 1}, {});  // which reads it, so that it is carried on
  }
}

void DeviceLife::Check(const Name& name, const Known& known) {
  const auto& [space, chain, at] = name;
  const BlockKey key = Chain(chain)[at];
  const std::span<const BlockKey> one(&key, 1);
  const NamespaceHandle handle = spaces_[space].handle;
  const size_t found = node_.cache().Lookup(handle, one);
  const std::string what =
      absl::StrFormat("block %d of chain %d in namespace %d", at, chain, space);
  if (known.is_erased && found > 0) return Fail(what + " was invalidated, and is found");
  if (known.is_durable && found == 0) return Fail(what + " was complete, and is gone");
  if (found == 0) return;
  ++outcome_.checked;
  if (node_.cache().LoadNow(handle, one, IoClass::kDemand) == 1 && Read(space, one) == 1) return;
  if (known.is_durable || node_.cache().Lookup(handle, one) > 0 || ++vanished_ > kVanishedMax) {
    Fail(what + " is found and does not come");
  }
}

void DeviceLife::CheckAll() {
  for (const auto& [name, known] : known_) {
    if (failed()) return;
    Check(name, known);
  }
}

void DeviceLife::End() {
  const uint64_t how = random_.Below(4);
  preloads_ = how == 0;
  if (preloads_) node_.cache().FlushDevices(kLongNanos);
  Settle();
  const DeviceTierStats stats = node_.Stats();
  outcome_.loaded += stats.loaded_blocks;
  outcome_.joined += stats.flights.joined;
  // Else reclaiming may begin, which is another test.
  KV_CHECK(stats.devices[0].log.slots[static_cast<int>(SlotState::kFree)] > 16);
  outcome_.decoded += stats.decoded_blocks;
  // With a rung, each life may have another one than the life before.
  if (rung_ != Representation::kRaw) {
    node_.SetRung(random_.OneIn(2) ? rung_ : Representation::kRaw);
  }
  node_.Crash(/*loses_catalogue=*/how == 1);
  Open();
  if (!node_.WaitDevices()) return Fail("the device was not recovered");
  CheckAll();
}

}  // namespace kvarve::testing
