// Moves on a CUDA device, over the fake driver: bytes equal to what the CPU device makes of the
// same pages, in each of the three ways; the planted bugs that the fake driver must name; room,
// captures, registration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gpu/device/cuda_device.h"
#include "gpu/emulator/fake_driver.h"
#include "gpu/transfer/transfer.h"
#include "gpu/transfer/transfer_testing.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using fake::FakeDriver;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::byte kModule[1] = {};
constexpr int64_t kLong = 60'000'000'000;
constexpr uint32_t kPageTokens = 8, kHeads = 2, kDim = 16, kPages = 24;
constexpr BlockLayout kLayout = {3, kHeads, 2 * kPageTokens, kDim, kDim, 2};
constexpr int64_t kRow = kDim * 2, kTensorPage = kRow * kHeads * kPageTokens;

enum class Order { kHnd, kNhd, kCrossLayer };

KvView ViewAt(std::byte* base, Order order) {
  KvView view;
  view.pages = kPages, view.page_tokens = kPageTokens, view.kv_heads = kHeads;
  view.k_dim = view.v_dim = kDim, view.element_bytes = 2;
  const int64_t total = kTensorPage * kPages * 2 * kLayout.layers;
  for (uint32_t i = 0; i < 2 * kLayout.layers; ++i) {
    PagedTensor t;
    const bool cross = order == Order::kCrossLayer;
    const int64_t offset = cross ? i * kTensorPage : i * kTensorPage * kPages;
    t.base = base + offset;
    t.bytes = total - offset;
    t.page_stride = cross ? 2 * kLayout.layers * kTensorPage : kTensorPage;
    t.token_stride = order == Order::kNhd ? kHeads * kRow : kRow;
    t.head_stride = order == Order::kNhd ? kRow : kPageTokens * kRow;
    if (i % 2 == 0) view.layers.push_back({t, {}});
    if (i % 2 == 1) view.layers.back().v = t;
  }
  return view;
}

// An engine's pages in device memory, blocks in host memory, and the same pages on the CPU.
struct Rig {
  static constexpr size_t kPagesBytes = kTensorPage * kPages * 2 * kLayout.layers;
  static constexpr size_t kBlocks = 6;

  Rig(FakeDriver* its_driver, Order order, std::optional<MoveMethod> method,
      uint64_t ring_bytes = 1 << 20, HostRegistry::Use use = HostRegistry::Use::kReadWrite)
      : driver(*its_driver), random(17) {
    device = OpenCudaDevice(driver.table(), "", kModule).value();
    pages = device->Allocate(kPagesBytes).value();
    cpu_pages.resize(kPagesBytes);
    blocks.resize(kBlocks * kLayout.BlockBytes());
    Fill();
    registry = std::make_shared<HostRegistry>(device);
    registry->Add(blocks, use);
    EXPECT_TRUE(registry->WaitIdle(kLong));
    auto* const base = reinterpret_cast<std::byte*>(pages.address());
    Transfer::Options options;
    options.method = method, options.ring_bytes = ring_bytes, options.groups = 2;
    auto made = Transfer::Create(device, registry, ViewAt(base, order), kLayout, options);
    EXPECT_TRUE(made.ok()) << made.status();
    transfer = *std::move(made);
    cpu = testing::CpuTransfer(ViewAt(cpu_pages.data(), order), kLayout).value();
    ids.resize(kPages);
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.Below(i)]);
  }
  void Fill() {
    for (std::byte& byte : cpu_pages) byte = static_cast<std::byte>(random.Next());
    for (std::byte& byte : blocks) byte = static_cast<std::byte>(random.Next());
    std::memcpy(reinterpret_cast<void*>(pages.address()), cpu_pages.data(), kPagesBytes);
  }
  BlockMove Block(size_t i, std::vector<std::byte>& in) const {
    const size_t bytes = kLayout.BlockBytes();
    return {std::span(in).subspan(i * bytes, bytes), std::span(ids).subspan(2 * i, 2)};
  }
  std::vector<BlockMove> Blocks(size_t n) {
    std::vector<BlockMove> moves;
    for (size_t i = 0; i < n; ++i) moves.push_back(Block(i, blocks));
    return moves;
  }
  absl::StatusOr<std::unique_ptr<Move>> Start(MoveDirection direction, size_t n,
                                              EngineStream engine = 0) {
    return transfer->Start(direction, Blocks(n), 0, kLayout.tokens, {engine});
  }
  bool PagesEqual() const {
    return std::memcmp(reinterpret_cast<const void*>(pages.address()), cpu_pages.data(),
                       kPagesBytes) == 0;
  }

  FakeDriver& driver;
  testing::SeededRandom random;
  std::vector<std::byte> cpu_pages, blocks;
  std::vector<int64_t> ids;
  std::shared_ptr<ComputeDevice> device;
  DeviceMemory pages;
  std::shared_ptr<HostRegistry> registry;
  std::unique_ptr<Transfer> transfer, cpu;
};

TEST(DeviceTransferTest, EveryWayMovesWhatTheCpuMoves) {
  for (const MoveMethod method : {MoveMethod::kCopies, MoveMethod::kKernel, MoveMethod::kStaged}) {
    for (const Order order : {Order::kHnd, Order::kNhd, Order::kCrossLayer}) {
      SCOPED_TRACE(std::string(MoveMethodName(method)) + std::to_string(static_cast<int>(order)));
      FakeDriver driver({.seed = 5 + static_cast<uint64_t>(order)});
      {
        Rig rig(&driver, order, method);
        for (int round = 0; round < 3; ++round) {
          std::vector<std::byte> expected = rig.blocks;
          for (size_t i = 0; i < 4; ++i) {
            const BlockMove block = rig.Block(i, expected);
            ASSERT_TRUE(testing::MoveNow(*rig.cpu, MoveDirection::kGather, block.page_ids, 0,
                                         kLayout.tokens, block.block)
                            .ok());
          }
          auto move = rig.Start(MoveDirection::kGather, 4);
          ASSERT_TRUE(move.ok()) << move.status();
          ASSERT_TRUE((*move)->Wait().ok());
          EXPECT_EQ(rig.blocks, expected);
          rig.Fill();
          // A part of the tokens, across pages.
          const uint32_t begin = round, end = kLayout.tokens - 2 * round;
          for (size_t i = 0; i < 4; ++i) {
            const BlockMove block = rig.Block(i, rig.blocks);
            ASSERT_TRUE(testing::MoveNow(*rig.cpu, MoveDirection::kScatter, block.page_ids, begin,
                                         end, block.block)
                            .ok());
          }
          move = rig.transfer->Start(MoveDirection::kScatter, rig.Blocks(4), begin, end);
          ASSERT_TRUE(move.ok()) << move.status();
          ASSERT_TRUE((*move)->Wait().ok());
          EXPECT_TRUE(rig.PagesEqual());
        }
        const TransferStats stats = rig.transfer->stats();
        EXPECT_EQ(stats.moves, 6u);
        EXPECT_EQ(stats.by_method[static_cast<int>(method)], 6u);
        EXPECT_EQ(stats.blocks, 24u);
        EXPECT_EQ(stats.in_flight, 0u);
      }
      EXPECT_THAT(driver.diagnostics(), IsEmpty());
      EXPECT_EQ(driver.leaks(), "");
    }
  }
}

TEST(DeviceTransferTest, TheShapeChoosesTheWay) {
  FakeDriver driver({});
  // Pieces of a page's rows of one head: 256 bytes here; NHD rows are 32.
  EXPECT_EQ(Rig(&driver, Order::kHnd, std::nullopt).transfer->method(), MoveMethod::kStaged);
  const auto method = [&](uint32_t page_tokens, uint32_t block_tokens, uint32_t dim) {
    const auto device = OpenCudaDevice(driver.table(), "", kModule).value();
    const BlockLayout layout = {2, 8, block_tokens, dim, dim, 2};
    KvView view;
    view.pages = 4, view.page_tokens = page_tokens, view.kv_heads = 8;
    view.k_dim = view.v_dim = dim, view.element_bytes = 2;
    const int64_t page = int64_t{8} * page_tokens * dim * 2;
    auto* const base = reinterpret_cast<std::byte*>(uint64_t{1} << 40);  // never touched
    for (int layer = 0; layer < 2; ++layer) {
      PagedTensor k{base + layer * 8 * page, 4 * page, page, page_tokens * dim * 2, dim * 2};
      PagedTensor v = k;
      v.base += 4 * page;
      view.layers.push_back({k, v});
    }
    return Transfer::Create(device, std::make_shared<HostRegistry>(device), view, layout, {})
        .value()
        ->method();
  };
  EXPECT_EQ(method(16, 64, 128), MoveMethod::kKernel);    // 4 KiB
  EXPECT_EQ(method(16, 16, 128), MoveMethod::kCopies);    // a block is a page: 32 KiB
  EXPECT_EQ(method(128, 256, 128), MoveMethod::kCopies);  // 32 KiB a head
  EXPECT_EQ(driver.leaks(), "");
}

// Work is queued and nothing has run: what a caller lets go of then is the bug.
TEST(DeviceTransferTest, PlantedBugsAreNamed) {
  struct Bug {
    const char* words;
    std::function<void(Rig&, Move&)> plant;
  };
  const Bug bugs[] = {
      {"early release: the lease before the event of kv_scatter",
       [](Rig& rig, Move&) { rig.driver.HostReleases(rig.blocks.data(), 64, "the lease"); }},
      {"reused too early: staging before the event of kv_scatter",
       [](Rig& rig, Move&) { rig.driver.HostWrites(rig.blocks.data(), 64, "staging"); }},
      {"early release: cuMemHostUnregister before the event of kv_scatter",
       [](Rig& rig, Move&) { rig.registry->Remove(rig.blocks.data()); }},
      {"missing event wait: the engine reads what kv_scatter",
       [](Rig& rig, Move&) {
         const auto* const page = reinterpret_cast<const std::byte*>(rig.pages.address());
         rig.driver.HostReads(page, Rig::kPagesBytes, "the engine");
       }},
      {"cuMemcpyAsync on stream",  // the engine's next kernel; whichever of the two ran first
       [](Rig& rig, Move&) {
         const auto stream = rig.device->NewStream().value();
         const auto to = rig.device->Allocate(Rig::kPagesBytes).value();
         const CopyJob read{rig.pages.address(), to.address(), Rig::kPagesBytes};
         ASSERT_TRUE(stream->Copy({&read, 1}, CopyOrder::kStream).ok());
         rig.driver.Go();
         ASSERT_TRUE(stream->Record().value()->Wait().ok());
       }},
  };
  for (const Bug& bug : bugs) {
    SCOPED_TRACE(bug.words);
    FakeDriver driver({});
    {
      Rig rig(&driver, Order::kHnd, MoveMethod::kKernel);
      driver.Hold();
      auto move = rig.Start(MoveDirection::kScatter, 2);
      ASSERT_TRUE(move.ok()) << move.status();
      bug.plant(rig, **move);
      driver.Go();
      ASSERT_TRUE((*move)->Wait().ok());
    }
    ASSERT_FALSE(driver.diagnostics().empty());
    EXPECT_THAT(driver.diagnostics().front(), HasSubstr(bug.words));
    EXPECT_THAT(driver.diagnostics().front(), HasSubstr("kv_scatter"));
  }
}

TEST(DeviceTransferTest, TheSameBehindTheEventIsClean) {
  FakeDriver driver({});
  {
    Rig rig(&driver, Order::kHnd, MoveMethod::kKernel);
    driver.Hold();
    auto move = rig.Start(MoveDirection::kScatter, 2);
    ASSERT_TRUE(move.ok());
    const auto stream = rig.device->NewStream().value();
    const auto handle = reinterpret_cast<EngineStream>(driver.NewEngineStream());
    ASSERT_TRUE((*move)->EngineAfterLayer(handle, 2).ok());
    EXPECT_FALSE((*move)->EngineAfterLayer(handle, 3).ok());
    ASSERT_TRUE(stream->WaitFor(**rig.device->RecordEngine(handle)).ok());
    const auto to = rig.device->Allocate(Rig::kPagesBytes).value();
    const CopyJob read{rig.pages.address(), to.address(), Rig::kPagesBytes};
    ASSERT_TRUE(stream->Copy({&read, 1}, CopyOrder::kStream).ok());
    driver.Go();
    ASSERT_TRUE((*move)->Wait().ok());
    ASSERT_TRUE(stream->Record().value()->Wait().ok());
    driver.HostReads(reinterpret_cast<void*>(rig.pages.address()), Rig::kPagesBytes, "the engine");
    driver.HostReleases(rig.blocks.data(), rig.blocks.size(), "the lease");
  }
  EXPECT_THAT(driver.diagnostics(), IsEmpty());
}

// A load is pipelined by layer: the first layers' rows are there, and known to be, before the last.
TEST(DeviceTransferTest, AnEngineNeedNotWaitForTheLastLayer) {
  FakeDriver driver({});
  {
    Rig rig(&driver, Order::kHnd, MoveMethod::kCopies);
    driver.Hold();
    auto move = rig.Start(MoveDirection::kScatter, 1);
    ASSERT_TRUE(move.ok());
    const auto handle = reinterpret_cast<EngineStream>(driver.NewEngineStream());
    const auto engine = rig.device->NewStream().value();
    ASSERT_TRUE((*move)->EngineAfterLayer(handle, 0).ok());
    ASSERT_TRUE(engine->WaitFor(**rig.device->RecordEngine(handle)).ok());
    const auto first = engine->Record().value();
    int steps = 0;
    while (!*first->Done()) steps += driver.Step(1);
    EXPECT_GT(driver.queued(), 0u) << "after " << steps << " steps the last layer has yet to come";
    EXPECT_FALSE(*(*move)->Done());
    driver.Go();
    ASSERT_TRUE((*move)->Wait().ok());
  }
  EXPECT_THAT(driver.diagnostics(), IsEmpty());
}

// What the engine has queued comes first, and what it queues later comes after a gather.
TEST(DeviceTransferTest, AGatherIsOrderedWithTheEnginesStream) {
  for (const MoveMethod method : {MoveMethod::kCopies, MoveMethod::kKernel, MoveMethod::kStaged}) {
    FakeDriver driver({.seed = 11});
    {
      Rig rig(&driver, Order::kHnd, method);
      const auto handle = reinterpret_cast<EngineStream>(driver.NewEngineStream());
      // An engine's kernels, as copies by a stream that is ordered like the engine's own.
      const auto engine = rig.device->NewStream().value();
      const auto other = rig.device->Allocate(Rig::kPagesBytes).value();
      std::shared_ptr<DeviceEvent> written;
      auto engine_writes = [&] {
        ASSERT_TRUE(engine->WaitFor(**rig.device->RecordEngine(handle)).ok());
        const CopyJob write{other.address(), rig.pages.address(), Rig::kPagesBytes};
        ASSERT_TRUE(engine->Copy({&write, 1}, CopyOrder::kStream).ok());
        written = engine->Record().value();
        ASSERT_TRUE(engine->EngineAfter(handle, *written).ok());
      };
      driver.Hold();
      engine_writes();
      auto move = rig.Start(MoveDirection::kGather, 6, handle);
      ASSERT_TRUE(move.ok());
      engine_writes();
      while (!*written->Done()) driver.Step(1);
      // In the staged way the pages are read long before the blocks are written.
      EXPECT_EQ(*(*move)->Done(), method != MoveMethod::kStaged);
      driver.Go();
      ASSERT_TRUE((*move)->Wait().ok());
      for (const std::byte byte : rig.blocks)
        ASSERT_EQ(byte, std::byte{0xAB});  // what the engine had written
    }
    EXPECT_THAT(driver.diagnostics(), IsEmpty());
  }
}

TEST(DeviceTransferTest, RoomIsBounded) {
  FakeDriver driver({});
  {
    // A ring of three blocks: one block a move, three moves.
    Rig rig(&driver, Order::kNhd, MoveMethod::kStaged, 3 * kLayout.BlockBytes());
    EXPECT_EQ(rig.transfer->max_blocks(), 1u);
    driver.Hold();
    std::vector<std::unique_ptr<Move>> moves;
    for (int i = 0; i < 3; ++i) {
      const BlockMove block = rig.Block(i, rig.blocks);
      moves.push_back(
          rig.transfer->Start(MoveDirection::kScatter, {&block, 1}, 0, kLayout.tokens).value());
    }
    EXPECT_EQ(rig.Start(MoveDirection::kScatter, 1).status().code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(rig.transfer->stats().in_flight, 3u);
    EXPECT_EQ(rig.transfer->stats().exhausted, 1u);
    driver.Go();
    ASSERT_TRUE(moves[1]->Wait().ok());
    const BlockMove again = rig.Block(1, rig.blocks);
    EXPECT_TRUE(rig.transfer->Start(MoveDirection::kScatter, {&again, 1}, 0, kLayout.tokens).ok());
    moves.clear();
    EXPECT_EQ(rig.transfer->stats().in_flight, 0u);
    EXPECT_EQ(rig.Start(MoveDirection::kScatter, 2).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(driver.diagnostics(), IsEmpty());
  EXPECT_EQ(driver.leaks(), "");
}

// A move that nobody wants any more still ends before its memory may go.
TEST(DeviceTransferTest, AForgottenMoveIsWaitedFor) {
  FakeDriver driver({});
  {
    Rig rig(&driver, Order::kHnd, MoveMethod::kStaged);
    { EXPECT_TRUE(rig.Start(MoveDirection::kGather, 4).ok()); }
    driver.HostWrites(rig.blocks.data(), rig.blocks.size(), "staging");
  }
  EXPECT_THAT(driver.diagnostics(), IsEmpty());
}

// A place is free when its work is done, not when whoever asked for it has looked.
TEST(DeviceTransferTest, RoomComesBackByItself) {
  FakeDriver driver({});
  {
    Rig rig(&driver, Order::kNhd, MoveMethod::kStaged, 2 * kLayout.BlockBytes());
    auto start = [&](size_t i) {
      const BlockMove block = rig.Block(i, rig.blocks);
      return rig.transfer->Start(MoveDirection::kGather, {&block, 1}, 0, kLayout.tokens);
    };
    driver.Hold();
    auto first = start(0).value(), second = start(1).value();
    EXPECT_EQ(start(2).status().code(), absl::StatusCode::kResourceExhausted);
    std::thread later([&] { driver.Go(); });
    rig.transfer->AwaitRoom();
    later.join();
    auto third = start(2).value();
    EXPECT_TRUE(third->Wait().ok() && first->Wait().ok() && second->Wait().ok());
    // The places that the first two no longer have are not given back twice.
    first.reset(), second.reset(), third.reset();
    EXPECT_EQ(rig.transfer->stats().in_flight, 0u);
    driver.Hold();
    std::vector<std::unique_ptr<Move>> moves;
    for (auto move = start(0); move.ok(); move = start(moves.size()))
      moves.push_back(*std::move(move));
    EXPECT_EQ(moves.size(), 2u);
    driver.Go();
  }
  EXPECT_THAT(driver.diagnostics(), IsEmpty());
  EXPECT_EQ(driver.leaks(), "");
}

// The driver fails at each call of a move in turn, be it a launch, a copy, a record or a wait: what
// it took before runs to its end before Start returns, and a want of its memory is not a want of
// room, which callers wait for.
TEST(DeviceTransferTest, AStartThatFailsAnywhereLeavesNothingMoving) {
  for (const MoveMethod method : {MoveMethod::kCopies, MoveMethod::kKernel, MoveMethod::kStaged}) {
    for (const MoveDirection direction : {MoveDirection::kGather, MoveDirection::kScatter}) {
      SCOPED_TRACE(std::string(MoveMethodName(method)) +
                   (direction == MoveDirection::kGather ? " gather" : " scatter"));
      FakeDriver driver({.seed = 3});
      size_t calls = 0;  // of a whole start
      {
        Rig rig(&driver, Order::kHnd, method);
        const auto engine = reinterpret_cast<EngineStream>(driver.NewEngineStream());
        for (bool failed = true; failed; ++calls) {
          driver.Hold();
          driver.FailCall(static_cast<int>(calls), cuda::kOutOfMemory);
          std::thread later([&] {
            while (driver.queued() < calls) std::this_thread::yield();
            driver.Go();
          });
          auto move = rig.Start(direction, 4, engine);
          failed = !move.ok();
          if (failed) {
            EXPECT_EQ(move.status().code(), absl::StatusCode::kInternal) << move.status();
            driver.HostReleases(rig.blocks.data(), rig.blocks.size(), "the lease");
            EXPECT_EQ(rig.transfer->stats().in_flight, 0u) << "after call " << calls;
          }
          later.join();
          driver.FailCall(-1, cuda::kSuccess);
          EXPECT_TRUE(failed || (*move)->Wait().ok());
        }
        EXPECT_TRUE(rig.Start(direction, 4, engine).ok()) << "the next one is well";
      }
      // Two groups of layers, each with a launch or a copy and a record; the engine before them.
      EXPECT_GE(calls, 6u);
      EXPECT_THAT(driver.diagnostics(), IsEmpty());
      EXPECT_EQ(driver.leaks(), "");
    }
  }
}

// A capture that forbids to look delays the end of a move, and does not stand for it.
TEST(DeviceTransferTest, ARefusedWaitIsNotTheEnd) {
  FakeDriver driver({});
  {
    Rig rig(&driver, Order::kHnd, MoveMethod::kCopies);
    driver.Hold();
    auto move = rig.Start(MoveDirection::kScatter, 2).value();
    driver.RefuseNext(3);
    EXPECT_FALSE(*move->Done());
    std::thread later([&] { driver.Go(); });
    move.reset();
    later.join();
    driver.HostReleases(rig.blocks.data(), rig.blocks.size(), "the lease");
  }
  EXPECT_THAT(driver.diagnostics(), IsEmpty());
}

}  // namespace
}  // namespace kvarve
