// Loads and saves of a CUDA engine, over the fake driver: what a load reads is held, and what a
// save gathers is not put, until the last copy's event, also when nobody wants it any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "client/cpp/engine/block_loader.h"
#include "client/cpp/engine/block_saver.h"
#include "client/cpp/engine/pages_testing.h"
#include "gpu/device/cuda_device.h"
#include "gpu/emulator/fake_driver.h"

namespace kvarve {
namespace {

using fake::FakeDriver;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::byte kModule[1] = {};
constexpr uint64_t kBlockBytes = 512;
constexpr int64_t kLong = 60'000'000'000;

// Blocks in registered memory; `early`: the planted bug, a hold that ends with the call.
struct Blocks {
  explicit Blocks(FakeDriver* its_driver) : driver(its_driver), memory(16 * kBlockBytes) {
    std::mt19937_64 random(3);
    memory = RandomBytes(memory.size(), random);
  }
  FakeDriver* const driver;
  std::vector<std::byte> memory;
  bool early = false;
  std::function<void()> on_open = [] {};
  std::atomic<int> held{0};
  std::atomic<bool> released{false};
};

class BlocksSource final : public BlockSource {
 public:
  explicit BlocksSource(Blocks* blocks) : blocks_(blocks) {}
  absl::StatusOr<OpenBlocks> Open(ClientNamespace, std::span<const BlockKey> keys,
                                  const std::optional<GrantSet>&, uint64_t) override {
    blocks_->on_open();
    OpenBlocks open;
    open.block_bytes = kBlockBytes;
    for (const BlockKey& key : keys) {
      open.blocks.push_back(blocks_->memory.data() + key.Word(0) * kBlockBytes);
      open.checksums.push_back(0);
    }
    ++blocks_->held;
    auto release = [blocks = blocks_](void*) {
      --blocks->held;
      blocks->driver->HostReleases(blocks->memory.data(), blocks->memory.size(), "the lease");
      blocks->released = true;
    };
    if (!blocks_->early) {
      open.hold = std::shared_ptr<void>(nullptr, release);
    } else {
      // Right behind the first copy that reads it, as one who forgets to wait would.
      releaser_ = std::thread([this, release] {
        while (blocks_->driver->calls("cuMemcpyBatchAsync") == 0) std::this_thread::yield();
        release(nullptr);
      });
    }
    return open;
  }
  bool Verify(ClientNamespace, const BlockKey&, const std::byte*, uint64_t) override {
    return true;
  }
  ~BlocksSource() override {
    if (releaser_.joinable()) releaser_.join();
  }

 private:
  Blocks* const blocks_;
  std::thread releaser_;
};

class StagingSink final : public BlockSink {
 public:
  explicit StagingSink(Blocks* blocks) : blocks_(blocks) {}
  absl::StatusOr<StagedBytes> Stage(size_t) override {
    return StagedBytes{blocks_->memory.data(), std::shared_ptr<void>(nullptr, [this](void*) {
                         blocks_->driver->HostWrites(blocks_->memory.data(), blocks_->memory.size(),
                                                     "staging");
                       })};
  }
  absl::StatusOr<std::vector<PutOutcome>> Put(ClientNamespace, const PutChain& chain,
                                              StagedBytes staged) override {
    blocks_->driver->HostReads(staged.data, chain.keys.size() * kBlockBytes, "the daemon");
    return std::vector<PutOutcome>(chain.keys.size(), PutOutcome::kStored);
  }

 private:
  Blocks* const blocks_;
};

class DeviceLoadTest : public ::testing::Test {
 protected:
  DeviceLoadTest() : driver_({}), blocks_(&driver_) {
    device_ = OpenCudaDevice(driver_.table(), "", kModule).value();
    registry_ = std::make_shared<HostRegistry>(device_);
    registry_->Add(blocks_.memory, HostRegistry::Use::kReadWrite);
    EXPECT_TRUE(registry_->WaitIdle(kLong));
    memory_ = device_->Allocate(pages_.memory.size()).value();
    KvView view = pages_.view;
    for (LayerView& layer : view.layers) {
      layer.k.base += memory_.address() - reinterpret_cast<uint64_t>(pages_.memory.data());
      layer.v.base += memory_.address() - reinterpret_cast<uint64_t>(pages_.memory.data());
    }
    transfer_ = Transfer::Create(device_, registry_, view, TestPages::kLayout, {}).value();
  }
  LoadJob Job(size_t blocks) {
    LoadJob job{.id = 1, .ns = 1, .pages = transfer_};
    for (size_t i = 0; i < blocks; ++i) {
      job.keys.push_back(KeyOf(i));
      job.page_ids.push_back(2 * i);
      job.page_ids.push_back(2 * i + 1);
    }
    return job;
  }
  static LoadResult Await(BlockLoader& loader) {
    pollfd ready = {loader.event_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&ready, 1, 30'000), 1);
    return loader.Poll().at(0);
  }

  FakeDriver driver_;
  Blocks blocks_;
  TestPages pages_;
  std::shared_ptr<ComputeDevice> device_;
  std::shared_ptr<HostRegistry> registry_;
  DeviceMemory memory_;
  std::shared_ptr<Transfer> transfer_;
};

TEST_F(DeviceLoadTest, ACancelledLoadEndsBehindItsCopies) {
  auto loader = BlockLoader::Create(std::make_unique<BlocksSource>(&blocks_), {1, true}).value();
  driver_.Hold();
  ASSERT_TRUE(loader->Submit(Job(4)).ok());
  while (driver_.calls("cuMemcpyBatchAsync") == 0) std::this_thread::yield();
  EXPECT_TRUE(loader->Cancel(1));
  driver_.Step(2);
  EXPECT_THAT(loader->Poll(), IsEmpty()) << "pages may still be written";
  EXPECT_EQ(blocks_.held, 1);
  driver_.Go();
  EXPECT_EQ(Await(*loader).status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(blocks_.held, 0);
  EXPECT_THAT(driver_.diagnostics(), IsEmpty());
}

TEST_F(DeviceLoadTest, ALoadIsThereWhenItsResultIs) {
  auto loader = BlockLoader::Create(std::make_unique<BlocksSource>(&blocks_), {2, true}).value();
  ASSERT_TRUE(loader->Submit(Job(16)).ok());
  const LoadResult result = Await(*loader);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.blocks, 16u);
  driver_.HostReads(reinterpret_cast<void*>(memory_.address()), memory_.bytes(), "the engine");
  EXPECT_EQ(blocks_.held, 0);
  EXPECT_THAT(driver_.diagnostics(), IsEmpty());
}

TEST_F(DeviceLoadTest, PlantedEarlyLeaseReleaseIsNamed) {
  blocks_.early = true;
  {
    auto loader = BlockLoader::Create(std::make_unique<BlocksSource>(&blocks_), {1, true}).value();
    driver_.Hold();
    ASSERT_TRUE(loader->Submit(Job(4)).ok());
    while (!blocks_.released) std::this_thread::yield();
    driver_.Go();
    Await(*loader);
  }
  ASSERT_FALSE(driver_.diagnostics().empty());
  EXPECT_THAT(driver_.diagnostics().front(),
              HasSubstr("early release: the lease before the event of"));
}

TEST_F(DeviceLoadTest, ASaveIsPutBehindItsGather) {
  {
    BlockSaver saver(std::make_unique<StagingSink>(&blocks_));
    driver_.Hold();
    const LoadJob job = Job(8);
    const absl::StatusOr<SaveAnswer> answer = saver.Save(
        {.id = 1, .ns = 1, .keys = job.keys, .pages = transfer_, .page_ids = job.page_ids});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->blocks, 8u);
    EXPECT_EQ(saver.pending_blocks(), 8u);
    driver_.Step(3);
    driver_.Go();
    ASSERT_TRUE(saver.Drain(kLong));
    EXPECT_EQ(saver.Poll().at(0).outcomes.size(), 8u);
    // One that is cancelled while its gather runs: its staging comes back behind it.
    driver_.Hold();
    ASSERT_TRUE(
        saver
            .Save(
                {.id = 2, .ns = 1, .keys = job.keys, .pages = transfer_, .page_ids = job.page_ids})
            .ok());
    std::thread later([&] { driver_.Go(); });
    saver.Stop();
    later.join();
  }
  EXPECT_THAT(driver_.diagnostics(), IsEmpty());
}

// A load comes behind what the engine had asked for when it was submitted, and behind no later
// step; nor does a capture that begins meanwhile concern it.
TEST_F(DeviceLoadTest, ALoadWaitsForWhatTheEngineHadAndForNoMore) {
  std::atomic<bool> may_open{false};
  blocks_.on_open = [&] {
    while (!may_open) std::this_thread::yield();
  };
  auto loader = BlockLoader::Create(std::make_unique<BlocksSource>(&blocks_), {1, true}).value();
  const cuda::Stream engine = driver_.NewEngineStream();
  LoadJob job = Job(4);
  job.engine = reinterpret_cast<EngineStream>(engine);
  // The engine's step: reads the pages as they were. Its words are another stream's here.
  const DeviceMemory words = device_->Allocate(16).value();
  std::memset(reinterpret_cast<void*>(words.address()), 0, 16);
  const auto step = device_->NewStream().value(), next = device_->NewStream().value();
  const DeviceMemory other = device_->Allocate(memory_.bytes()).value();
  const CopyJob read{memory_.address(), other.address(), memory_.bytes()};
  ASSERT_TRUE(step->WaitValue(words.address(), 1).ok());
  ASSERT_TRUE(step->Copy({&read, 1}, CopyOrder::kStream).ok());
  ASSERT_TRUE(step->EngineAfter(job.engine, **step->Record()).ok());
  ASSERT_TRUE(loader->Submit(job).ok());
  ASSERT_TRUE(next->WaitValue(words.address() + 8, 1).ok());
  ASSERT_TRUE(next->EngineAfter(job.engine, **next->Record()).ok());
  driver_.BeginCapture(engine);
  may_open = true;
  while (driver_.calls("cuMemcpyBatchAsync") == 0) std::this_thread::yield();
  EXPECT_THAT(loader->Poll(), IsEmpty()) << "the step has not read its pages";
  const auto host = device_->NewStream().value();
  ASSERT_TRUE(host->WriteValue(words.address(), 1).ok());
  EXPECT_TRUE(Await(*loader).status.ok()) << "the next step has not begun";
  EXPECT_TRUE(driver_.EndCapture());
  ASSERT_TRUE(host->WriteValue(words.address() + 8, 1).ok());
  ASSERT_TRUE(step->Synchronize().ok() && next->Synchronize().ok() && host->Synchronize().ok());
  EXPECT_THAT(driver_.diagnostics(), IsEmpty());
}

TEST_F(DeviceLoadTest, PagesOfACapturingEngineAreLeftAlone) {
  auto loader = BlockLoader::Create(std::make_unique<BlocksSource>(&blocks_), {1, true}).value();
  const cuda::Stream engine = driver_.NewEngineStream();
  driver_.BeginCapture(engine);
  LoadJob job = Job(2);
  job.engine = reinterpret_cast<EngineStream>(engine);
  ASSERT_TRUE(loader->Submit(job).ok());
  EXPECT_EQ(Await(*loader).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(driver_.EndCapture());
  ASSERT_TRUE(loader->Submit(job).ok());
  EXPECT_TRUE(Await(*loader).status.ok());
  EXPECT_THAT(driver_.diagnostics(), IsEmpty());
}

}  // namespace
}  // namespace kvarve
