// An engine whose pages are in the memory of a device, the CPU or the fake driver's: saves chains
// of blocks from pages and loads them into others, over a real daemon. Blocks' bytes follow from
// their keys, so that it knows what is right.
//
// THREADS: one.  BLOCKS: until a save or a load has ended.
#ifndef KVARVE_TESTS_INTEGRATION_GPU_ENGINE_H_
#define KVARVE_TESTS_INTEGRATION_GPU_ENGINE_H_

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "client/cpp/engine/block_loader.h"
#include "client/cpp/engine/block_saver.h"
#include "client/cpp/engine/host_path.h"
#include "gpu/emulator/fake_driver.h"
#include "gpu/transfer/transfer.h"
#include "tests/integration/spawned.h"

namespace kvarve::testing {

inline constexpr uint64_t kGpuChains = 24;
inline constexpr size_t kGpuChainBlocks = 6;
inline constexpr BlockLayout kGpuLayout = {4, 2, 8, 64, 64, 2};  // 16 KiB a block

class GpuEngine {
 public:
  // `path`: host (the CPU device), arena, staging, writable: what the fake device can.
  GpuEngine(const std::string& socket, const std::string& engine_id, const std::string& path,
            uint64_t seed);
  ~GpuEngine();
  bool Ready();

  enum class Answer { kDone, kMiss, kWrong };
  Answer Save(uint64_t chain);
  Answer Load(uint64_t chain);
  // One of both, at random, of a random chain, the device's work held up at random.
  Answer Turn();
  // Called where copies are "queued", none begun, and where they are "half" done.
  void OnState(std::function<void(const std::string&)> call) { on_state_ = std::move(call); }
  std::string_view path() const;
  // What the fake driver has to say; empty: nothing.
  std::string Complaints();
  // Blocks of the last loads that were right.
  uint64_t loaded() const { return loaded_; }

 private:
  std::vector<int64_t> RandomPages();
  void WritePages(const std::vector<BlockKey>& keys, const std::vector<int64_t>& ids);
  bool PagesHold(const std::vector<BlockKey>& keys, const std::vector<int64_t>& ids);
  void StepThroughWork();

  std::mt19937_64 random_;
  std::unique_ptr<fake::FakeDriver> driver_;  // null: the CPU
  std::shared_ptr<ComputeDevice> device_;
  DeviceMemory pages_;
  std::shared_ptr<HostRegistry> registry_;
  std::shared_ptr<DeviceMemoryObserver> observer_;
  std::shared_ptr<Transfer> transfer_;
  std::unique_ptr<Transfer> by_hand_;  // the same pages, as a test may touch them
  std::unique_ptr<Client> load_client_, save_client_;
  ClientNamespace load_ns_ = 0, save_ns_ = 0;
  std::unique_ptr<BlockLoader> loader_;
  std::unique_ptr<BlockSaver> saver_;
  uint64_t next_id_ = 1, loaded_ = 0;
  bool hold_ = false;
  std::function<void(const std::string&)> on_state_ = [](const std::string&) {};
};

// SOCKET ENGINE PATH SEED: turns until the test is gone. Says "turn" after each, the states of its
// copies in between, "wrong" when bytes were, or the fake driver saw a bug.
int GpuEngineRole(const Stage& stage);

}  // namespace kvarve::testing

#endif  // KVARVE_TESTS_INTEGRATION_GPU_ENGINE_H_
