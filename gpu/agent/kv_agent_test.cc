// The agent as a library, memory given to another process, and the agent's two ends, over the fake
// driver in one process. Kills are in agent_kill_test.cc.
#include "gpu/agent/kv_agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "gpu/agent/agent_client.h"
#include "gpu/agent/agent_pages_testing.h"
#include "gpu/agent/agent_server.h"
#include "gpu/agent/shared_memory.h"

namespace kvarve {
namespace {

using fake::FakeDriver;
using testing::AgentPages;
using testing::FakeOptions;
using ::testing::HasSubstr;
using testing::Holdings;
using ::testing::IsEmpty;
using testing::kAgentLayout;
using testing::kPatience;

const uint64_t kBlock = kAgentLayout.BlockBytes();

// An engine with the library: pages on the device, one block in registered memory.
struct InProcess {
  explicit InProcess(FakeDriver* driver) : pages(driver, MemoryKind::kVmm, 1), block(kBlock) {
    registry = std::make_shared<HostRegistry>(pages.device);
    registry->Add(block, HostRegistry::Use::kReadWrite);
    EXPECT_TRUE(registry->WaitIdle(kPatience));
    agent = std::make_unique<KvAgent>(pages.device, registry);
  }
  absl::StatusOr<std::unique_ptr<AgentMove>> Gather(uint64_t generation,
                                                    const std::vector<int64_t>& ids) {
    const BlockMove move{block, ids};
    return agent->Start(generation, MoveDirection::kGather, {&move, 1});
  }
  AgentPages pages;
  std::vector<std::byte> block;
  std::shared_ptr<HostRegistry> registry;
  std::unique_ptr<KvAgent> agent;
};

TEST(KvAgentTest, SleepRetiresAGenerationAndWakingMakesANewOne) {
  FakeDriver driver({});
  InProcess engine(&driver);
  const std::vector<int64_t> ids = {5, 2};
  EXPECT_TRUE(absl::IsFailedPrecondition(engine.Gather(1, ids).status()));
  ASSERT_EQ(engine.agent->Attach(engine.pages.view, kAgentLayout, {}, {}).value(), 1u);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      engine.agent->Attach(engine.pages.view, kAgentLayout, {}, {}).status()));
  auto move = engine.Gather(1, ids);
  ASSERT_TRUE(move.ok() && (*move)->Wait().ok());
  EXPECT_EQ(engine.block, engine.pages.Block(ids));
  EXPECT_TRUE(absl::IsFailedPrecondition(engine.agent->Detach(2)));
  EXPECT_TRUE(engine.agent->Detach(1).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine.Gather(1, ids).status()));
  ASSERT_EQ(engine.agent->Attach(engine.pages.view, kAgentLayout, {}, {}).value(), 2u);
  EXPECT_TRUE(absl::IsFailedPrecondition(engine.Gather(1, ids).status()));
  EXPECT_TRUE(engine.Gather(2, ids).ok());
  const KvAgent::Stats stats = engine.agent->stats();
  EXPECT_EQ(stats.moves, 2u);
  EXPECT_EQ(stats.stale, 3u);
  EXPECT_EQ(stats.under_way, 0u);
  EXPECT_THAT(driver.diagnostics(), IsEmpty());
}

// The memory goes behind the last move: else the fake driver names it.
TEST(KvAgentTest, DetachWaitsForWhatMoves) {
  FakeDriver driver({});
  InProcess engine(&driver);
  std::vector<DeviceMemory> kept;
  kept.push_back(engine.pages.device->Allocate(testing::kChunk).value());
  KvView view = engine.pages.view;
  // The same shape, in memory that the agent keeps.
  for (LayerView& layer : view.layers) {
    const auto offset = layer.k.base - engine.pages.view.layers[0].k.base;
    layer.v.base =
        reinterpret_cast<std::byte*>(kept[0].address()) + offset + (layer.v.base - layer.k.base);
    layer.k.base = reinterpret_cast<std::byte*>(kept[0].address()) + offset;
  }
  ASSERT_EQ(engine.agent->Attach(view, kAgentLayout, std::move(kept), {}).value(), 1u);
  driver.Hold();
  auto move = engine.Gather(1, {3, 4});
  ASSERT_TRUE(move.ok()) << move.status();
  std::atomic<bool> over = false;
  std::thread sleeper([&] {
    EXPECT_TRUE(engine.agent->Detach(1).ok());
    EXPECT_TRUE(over);
  });
  while (engine.agent->stats().generation != 0) std::this_thread::yield();
  EXPECT_TRUE(absl::IsFailedPrecondition(engine.Gather(1, {3, 4}).status()));
  driver.Go();
  over = true;
  EXPECT_TRUE((*move)->Wait().ok());
  sleeper.join();
  EXPECT_THAT(driver.diagnostics(), IsEmpty());
}

// In the engine's process a move comes behind what the engine's stream has, and what the stream
// gets next comes behind it: a gather reads neither too early nor too late.
TEST(KvAgentTest, AMoveHasItsPlaceInTheEnginesStream) {
  FakeDriver driver({.seed = 7});
  InProcess engine(&driver);
  ASSERT_EQ(engine.agent->Attach(engine.pages.view, kAgentLayout, {}, {}).value(), 1u);
  const std::vector<int64_t> ids = {9, 4};
  const auto stream = reinterpret_cast<EngineStream>(driver.NewEngineStream());
  // The engine's kernels, as copies by a stream that is ordered like the engine's own: each fills
  // the pages with its own bytes.
  const auto steps = engine.pages.device->NewStream().value();
  const auto base = reinterpret_cast<uint64_t>(engine.pages.view.layers[0].k.base);
  const auto bytes = static_cast<uint64_t>(engine.pages.view.layers[0].k.bytes) * 6;
  const auto written = engine.pages.device->Allocate(2 * bytes).value();
  std::memset(reinterpret_cast<void*>(written.address()), 1, bytes);
  std::memset(reinterpret_cast<void*>(written.address() + bytes), 2, bytes);
  const auto step = [&](uint64_t which) {
    ASSERT_TRUE(steps->WaitFor(**engine.pages.device->RecordEngine(stream)).ok());
    const CopyJob write{written.address() + which * bytes, base, bytes};
    ASSERT_TRUE(steps->Copy({&write, 1}, CopyOrder::kStream).ok());
    ASSERT_TRUE(steps->EngineAfter(stream, **steps->Record()).ok());
  };
  driver.Hold();
  step(0);
  const BlockMove block{engine.block, ids};
  auto move = engine.agent->Start(1, MoveDirection::kGather, {&block, 1}, {stream});
  ASSERT_TRUE(move.ok()) << move.status();
  step(1);
  driver.Go();
  ASSERT_TRUE((*move)->Wait().ok());
  EXPECT_EQ(engine.block, std::vector<std::byte>(kBlock, std::byte{1}));
  ASSERT_TRUE(steps->Synchronize().ok());
  EXPECT_THAT(driver.diagnostics(), IsEmpty());
}

std::atomic<bool> g_sticky = false;
cuda::Driver g_table;

TEST(KvAgentTest, AfterAnErrorOfTheDeviceEverythingIsAMiss) {
  constexpr cuda::Result kIllegalAddress = 700;
  FakeDriver driver({});
  InProcess engine(&driver);
  g_table = driver.table();
  cuda::Driver failing = g_table;
  failing.EventSynchronize = [](cuda::Event event) {
    return g_sticky ? kIllegalAddress : g_table.EventSynchronize(event);
  };
  failing.EventQuery = [](cuda::Event event) {
    return g_sticky ? kIllegalAddress : g_table.EventQuery(event);
  };
  auto device = OpenCudaDevice(failing, "", testing::kAgentModule).value();
  KvAgent agent(device, engine.registry);
  ASSERT_EQ(agent.Attach(engine.pages.view, kAgentLayout, {}, {}).value(), 1u);
  const std::vector<int64_t> ids = {1, 2};
  const BlockMove block{engine.block, ids};
  const uint64_t contexts = driver.calls("cuMemAlloc");
  auto move = agent.Start(1, MoveDirection::kGather, {&block, 1});
  ASSERT_TRUE(move.ok());
  g_sticky = true;
  const absl::Status failed = (*move)->Wait();
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("the device failed"));
  while (driver.queued() > 0) std::this_thread::yield();  // a device that failed would not run on
  EXPECT_TRUE(absl::IsUnavailable(agent.Start(1, MoveDirection::kGather, {&block, 1}).status()));
  EXPECT_TRUE(agent.Detach(1).ok());
  EXPECT_TRUE(absl::IsUnavailable(agent.Attach(engine.pages.view, kAgentLayout, {}, {}).status()));
  EXPECT_TRUE(agent.stats().failed);
  EXPECT_EQ(driver.calls("cuMemAlloc"), contexts) << "the device was asked again";
  g_sticky = false;
}

TEST(SharedMemoryTest, TheKindIsProbedForEachAllocation) {
  FakeDriver driver(FakeOptions(MemoryKind::kLegacy));
  AgentPages chunks(&driver, MemoryKind::kVmm, 1), whole(&driver, MemoryKind::kLegacy, 2);
  const std::string uuid = chunks.device->info().uuid;
  const auto export_of = [&](const AgentPages& pages, int64_t bytes) {
    return MemoryExporter::Create(driver.table(), uuid,
                                  reinterpret_cast<uint64_t>(pages.view.layers[0].k.base),
                                  static_cast<uint64_t>(bytes));
  };
  const auto vmm = export_of(chunks, chunks.view.layers[0].k.bytes);
  ASSERT_TRUE(vmm.ok()) << vmm.status();
  EXPECT_EQ(vmm->range().kind, MemoryKind::kVmm);
  EXPECT_EQ(vmm->range().pieces, 2u);  // the tensor crosses a border
  EXPECT_EQ(vmm->range().end - vmm->range().begin, 2 * testing::kChunk);
  const auto legacy = export_of(whole, whole.view.layers[0].k.bytes);
  ASSERT_TRUE(legacy.ok()) << legacy.status();
  EXPECT_EQ(legacy->range().kind, MemoryKind::kLegacy);
  EXPECT_EQ(reinterpret_cast<uint64_t>(whole.view.layers[0].k.base) - legacy->range().begin, 512u);
  EXPECT_TRUE(absl::IsFailedPrecondition(export_of(whole, 1 << 30).status()));
  EXPECT_TRUE(absl::IsNotFound(export_of(chunks, 1 << 30).status()));
  EXPECT_TRUE(absl::IsNotFound(MemoryExporter::Create(driver.table(), "GPU-other", 0, 1).status()));
}

TEST(SharedMemoryTest, MemoryThatCannotBeSharedIsRefusedByName) {
  FakeDriver driver({});  // cuMemAlloc's memory has no handle here
  AgentPages pages(&driver, MemoryKind::kLegacy, 1);
  auto exporter =
      MemoryExporter::Create(driver.table(), pages.device->info().uuid,
                             reinterpret_cast<uint64_t>(pages.view.layers[0].k.base), 1);
  ASSERT_TRUE(exporter.ok());
  const absl::Status refused = exporter->Next().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("cannot be shared"));
}

TEST(SharedMemoryTest, ChunksAreImportedSideBySideAndGoAgain) {
  FakeDriver driver({});
  auto pages = std::make_unique<AgentPages>(&driver, MemoryKind::kVmm, 1);
  const std::string uuid = pages->device->info().uuid;
  const auto at = reinterpret_cast<uint64_t>(pages->view.layers[0].k.base);
  const std::string before = driver.leaks();
  const Holdings held = Holdings::Now();
  {
    auto exporter = MemoryExporter::Create(driver.table(), uuid, at, 64 << 10).value();
    auto importer = MemoryImporter::Create(driver.table(), uuid, exporter.range()).value();
    for (auto piece = exporter.Next(); piece.ok() && *piece; piece = exporter.Next()) {
      EXPECT_FALSE(importer.complete());
      ASSERT_TRUE(importer.Add(**piece).ok());
    }
    ASSERT_TRUE(importer.complete());
    EXPECT_TRUE(absl::IsInvalidArgument(importer.Add({testing::kChunk, UniqueFd(), {}})));
    const DeviceMemory memory = importer.Finish().value();
    const auto* const there =
        reinterpret_cast<const std::byte*>(memory.address()) + (at - exporter.range().begin);
    EXPECT_EQ(std::memcmp(there, pages->view.layers[0].k.base, 64 << 10), 0);
    // One that is not finished gives back what it has.
    auto again = MemoryExporter::Create(driver.table(), uuid, at, 64 << 10).value();
    auto half = MemoryImporter::Create(driver.table(), uuid, again.range()).value();
    ASSERT_TRUE(half.Add(*again.Next().value()).ok());
  }
  EXPECT_EQ(driver.leaks(), before);
  EXPECT_EQ(Holdings::Now(), held);
  pages.reset();
  EXPECT_EQ(driver.leaks(), "");
}

class AgentServerTest : public ::testing::Test {
 protected:
  AgentServerTest() : driver_({}), pages_(&driver_, MemoryKind::kVmm, 1) {
    options_.socket_path = ::testing::TempDir() + "kvarve_agent_" + std::to_string(::getpid());
    options_.staging_bytes = 8 * kBlock;
    server_ = AgentServer::Start(driver_.table(), pages_.device, options_).value();
  }
  std::unique_ptr<AgentClient> Connected() {
    return AgentClient::Connect(options_.socket_path).value();
  }
  absl::StatusOr<uint64_t> Attach(AgentClient& client) {
    return client.Attach(driver_.table(), pages_.device->info().uuid, pages_.view, kAgentLayout,
                         kPatience);
  }
  // The end of one move.
  static absl::Status End(AgentClient& client, const absl::StatusOr<uint64_t>& ticket) {
    if (!ticket.ok()) return ticket.status();
    for (;;) {
      for (const AgentClient::Moved& moved : client.Poll()) {
        EXPECT_EQ(moved.ticket, *ticket);
        return moved.status;
      }
      std::this_thread::yield();
    }
  }
  void AwaitNobody() {
    while (server_->stats().sessions > 0) std::this_thread::yield();
  }

  FakeDriver driver_;
  AgentPages pages_;
  AgentServer::Options options_;
  std::unique_ptr<AgentServer> server_;
};

TEST_F(AgentServerTest, BlocksMoveBetweenAnEnginesPagesAndItsStaging) {
  const std::string before = driver_.leaks();
  const Holdings held = Holdings::Now();
  auto client = Connected();
  const auto generation = Attach(*client);
  ASSERT_TRUE(generation.ok()) << generation.status();
  ASSERT_GE(client->slots(), 8u);
  for (int i = 0; i < 20; ++i) {
    const std::vector<int64_t> ids = pages_.RandomIds();
    const std::span<std::byte> slot = client->slot(static_cast<size_t>(i % 8));
    ASSERT_EQ(
        End(*client, client->Start(*generation, MoveDirection::kGather, i % 8, ids, kPatience)),
        absl::OkStatus());
    const std::vector<std::byte> block = pages_.Block(ids);
    ASSERT_EQ(std::memcmp(slot.data(), block.data(), kBlock), 0);
    const std::vector<int64_t> others = pages_.RandomIds();
    const std::vector<std::byte> next = pages_.Scattered(others);
    std::memcpy(slot.data(), next.data(), kBlock);
    ASSERT_EQ(
        End(*client, client->Start(*generation, MoveDirection::kScatter, i % 8, others, kPatience)),
        absl::OkStatus());
    ASSERT_TRUE(pages_.Right());
  }
  EXPECT_EQ(client->Detach(*generation, kPatience), absl::OkStatus());
  EXPECT_EQ(server_->stats().attached, 0u);
  client.reset();
  AwaitNobody();
  EXPECT_EQ(server_->stats().moves, 40u);
  EXPECT_EQ(driver_.leaks(), before);
  EXPECT_THAT(driver_.diagnostics(), IsEmpty());
  server_.reset();  // joins: its threads have no descriptors
  Holdings now = Holdings::Now();
  EXPECT_EQ(now.mappings, held.mappings);
  EXPECT_LT(now.descriptors, held.descriptors) << "the server's own";
}

TEST_F(AgentServerTest, AStaleGenerationIsRefusedAfterSleepAndWake) {
  auto client = Connected();
  const uint64_t first = Attach(*client).value();
  EXPECT_TRUE(absl::IsFailedPrecondition(Attach(*client).status()));
  ASSERT_TRUE(client->Detach(first, kPatience).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      client->Start(first, MoveDirection::kGather, 0, pages_.RandomIds(), kPatience).status()));
  const uint64_t second = Attach(*client).value();
  EXPECT_NE(first, second);
  EXPECT_TRUE(absl::IsFailedPrecondition(End(
      *client, client->Start(first, MoveDirection::kScatter, 0, pages_.RandomIds(), kPatience))));
  EXPECT_TRUE(pages_.Right());
  EXPECT_EQ(
      End(*client, client->Start(second, MoveDirection::kGather, 0, pages_.RandomIds(), kPatience)),
      absl::OkStatus());
  EXPECT_EQ(server_->stats().stale_moves, 1u);
}

TEST_F(AgentServerTest, WhatDoesNotFitIsRefusedAndTheConnectionGoesOn) {
  auto client = Connected();
  const auto refused = client->Attach(driver_.table(), pages_.device->info().uuid, pages_.view,
                                      kAgentLayout, kPatience);
  ASSERT_TRUE(refused.ok());
  ASSERT_TRUE(client->Detach(*refused, kPatience).ok());
  // Page ids outside the view, and a slot that is none.
  const uint64_t generation = Attach(*client).value();
  const std::vector<int64_t> outside = {0, testing::kAgentPages};
  EXPECT_TRUE(absl::IsInvalidArgument(
      End(*client, client->Start(generation, MoveDirection::kGather, 0, outside, kPatience))));
  EXPECT_TRUE(absl::IsInvalidArgument(
      client->Start(generation, MoveDirection::kGather, client->slots(), outside, kPatience)
          .status()));
  EXPECT_EQ(End(*client, client->Start(generation, MoveDirection::kGather, 0, pages_.RandomIds(),
                                       kPatience)),
            absl::OkStatus());
  EXPECT_EQ(server_->stats().failed_moves, 1u);
}

TEST_F(AgentServerTest, WhatIsNoMessageEndsItsConnectionAlone) {
  auto client = Connected();
  const uint64_t generation = Attach(*client).value();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, options_.socket_path.c_str(), options_.socket_path.size());
  MoveMessage move;
  move.pages = 1 << 30;
  MemoryMessage memory;
  memory.pieces = ~0u;
  AttachMessage attach;
  attach.tensors = ~0u;
  const std::string packets[] = {"x",
                                 std::string(60'000, '\xff'),
                                 AgentBytes(move),
                                 AgentBytes(memory),
                                 AgentBytes(attach),
                                 AgentBytes(DetachMessage{}).substr(0, 9)};
  for (const std::string& packet : packets) {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::send(socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(packet.size()));
    char byte;
    EXPECT_EQ(::recv(socket.get(), &byte, 1, 0), 0) << packet.size() << " bytes";
  }
  EXPECT_EQ(End(*client, client->Start(generation, MoveDirection::kGather, 0, pages_.RandomIds(),
                                       kPatience)),
            absl::OkStatus());
}

TEST_F(AgentServerTest, ADeviceThatFailsIsAMissAndTheServerKnows) {
  server_.reset();
  g_table = driver_.table();
  cuda::Driver failing = g_table;
  failing.EventQuery = [](cuda::Event event) {
    return g_sticky ? cuda::Result{700} : g_table.EventQuery(event);
  };
  failing.EventSynchronize = [](cuda::Event event) {
    return g_sticky ? cuda::Result{700} : g_table.EventSynchronize(event);
  };
  const auto device = OpenCudaDevice(failing, "", testing::kAgentModule).value();
  const auto server = AgentServer::Start(failing, device, options_).value();
  auto client = Connected();
  const uint64_t generation = Attach(*client).value();
  g_sticky = true;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(End(*client, client->Start(generation, MoveDirection::kGather,
                                                               0, pages_.RandomIds(), kPatience))));
  }
  EXPECT_TRUE(server->stats().device_failed);
  EXPECT_TRUE(client->connected());
  while (driver_.queued() > 0) std::this_thread::yield();  // a device that failed would not run on
  g_sticky = false;
}

TEST_F(AgentServerTest, TheSocketIsOneAgentsAndAStaleOneIsReplaced) {
  const auto other = AgentServer::Start(driver_.table(), pages_.device, options_);
  EXPECT_TRUE(absl::IsAlreadyExists(other.status())) << other.status();
  server_.reset();
  EXPECT_TRUE(absl::IsUnavailable(AgentClient::Connect(options_.socket_path).status()));
  server_ = AgentServer::Start(driver_.table(), pages_.device, options_).value();
  EXPECT_TRUE(Attach(*Connected()).ok());
}

}  // namespace
}  // namespace kvarve
