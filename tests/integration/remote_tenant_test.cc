// Goal: what a remote tenant asks about itself is told truly: statistics, and events without a gap
// or a word that some were missed. Method: real clients against a real gRPC server over a real
// cache, whose own counters and calls are the other witness.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <chrono>
#include <functional>
#include <sstream>
#include <thread>

#include "client/cpp/client.h"
#include "client/rpc/grpc_plane.h"
#include "client/trace/trace.h"
#include "storage/testing/block_generator.h"
#include "tests/integration/remote_fixture_testing.h"

namespace kvarve {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::KeyChain;
using testing::MakeBlock;

constexpr uint64_t kBlock = 16384;

class RemoteTenantTest : public RemoteFixture {
 protected:
  static std::vector<PutOutcome> Put(Client& client, ClientNamespace ns,
                                     std::span<const BlockKey> keys) {
    return RemoteFixture::Put(client, ns, keys, kBlock);
  }
  struct Seen {
    std::vector<std::string> what;  // "stored 0": the kind, and which of the keys
    std::vector<uint64_t> sequences;
    EventCursor next;
  };
  // As many events of `stream` as are expected.
  static Seen Take(EventStream& stream, size_t count, std::span<const BlockKey> keys) {
    Seen seen;
    while (seen.what.size() < count) {
      const absl::StatusOr<EventBatch> batch = stream.Next(kLong);
      EXPECT_TRUE(batch.ok()) << batch.status();
      if (!batch.ok()) break;
      for (const BlockEvent& event : batch->events) {
        const auto key = std::ranges::find(keys, event.key);
        seen.what.push_back(std::string(EventKindName(event.kind)) + " " +
                            (event.key_bytes == 0 ? "all" : std::to_string(key - keys.begin())));
        seen.sequences.push_back(event.sequence);
      }
      seen.next = batch->next;
    }
    return seen;
  }
};

TEST_F(RemoteTenantTest, StatisticsAreTheCachesOwn) {
  Start();
  const auto client = Connect();
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(kBlock, "some model"));
  const std::vector<BlockKey> keys = KeyChain(1, 5);
  EXPECT_THAT(Put(*client, ns, std::span(keys).first(3)), Each(PutOutcome::kStored));
  EXPECT_EQ(client->Lookup(ns, keys)->hit_blocks, 3u);
  EXPECT_EQ(client->Acquire(ns, keys)->size(), 3u);
  const absl::StatusOr<TenantStats> told = client->ReadTenantStats();
  ASSERT_TRUE(told.ok()) << told.status();
  const CacheStats stats = cache_->Stats();
  const PoolStats& own = stats.pools.front();
  EXPECT_EQ(told->incarnation, cache_->incarnation());
  EXPECT_EQ(told->capacity_bytes, stats.arena.capacity_bytes);
  EXPECT_EQ(told->chunk_bytes, own.chunk_bytes);
  EXPECT_EQ(told->used_bytes, own.used_bytes);
  EXPECT_EQ(told->blocks, 3u);
  EXPECT_EQ(told->lookups, own.lookups);
  EXPECT_GE(told->lookups, 1u);
  EXPECT_EQ(told->lookup_keys, own.lookup_keys);
  EXPECT_EQ(told->hit_blocks, 3u);
  EXPECT_EQ(told->miss_blocks, own.miss_blocks);
  EXPECT_EQ(told->hit_bytes, 3 * kBlock);
  EXPECT_EQ(told->stored_blocks, 3u);
  EXPECT_EQ(told->stored_bytes, 3 * kBlock);
  EXPECT_EQ(told->evicted_blocks, 0u);
  ASSERT_EQ(told->namespaces.size(), 1u);
  EXPECT_EQ(told->namespaces[0].model, "some model");
  EXPECT_EQ(told->namespaces[0].tenant, "team");
  EXPECT_EQ(told->namespaces[0].block_bytes, kBlock);
  EXPECT_EQ(told->namespaces[0].key_bytes, 32u);
  EXPECT_EQ(told->namespaces[0].id, cache_->Namespaces().front().id);
}

// With one tier all that is found is in memory, and asking for it is an access.
TEST_F(RemoteTenantTest, PrefetchSaysWhatIsThere) {
  Start();
  const auto client = Connect();
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(kBlock));
  const std::vector<BlockKey> keys = KeyChain(1, 5);
  EXPECT_EQ(client->Prefetch(ns, keys)->hit_blocks, 0u);
  EXPECT_THAT(Put(*client, ns, std::span(keys).first(3)), Each(PutOutcome::kStored));
  EXPECT_EQ(client->Prefetch(ns, keys)->hit_blocks, 3u);
  EXPECT_EQ(client->Prefetch(ns, keys)->started_blocks, 0u);
  const std::vector<BlockKey> many = KeyChain(1, 20'000);  // of which a call takes 8,192
  EXPECT_EQ(client->Prefetch(ns, many)->hit_blocks, 3u);
  EXPECT_EQ(client->Prefetch(77, keys).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RemoteTenantTest, EventsComeInOrderAndAgain) {
  Start();
  const auto client = Connect();
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(kBlock));
  const std::vector<BlockKey> keys = KeyChain(1, 3);
  const auto watch = client->WatchEvents(kLong).value();
  const EventBatch first = watch->Next(kLong).value();
  EXPECT_THAT(first.events, ElementsAre());
  EXPECT_EQ(first.next.incarnation, cache_->incarnation());
  EXPECT_EQ(first.next.sequence, cache_->next_event());

  EXPECT_THAT(Put(*client, ns, keys), Each(PutOutcome::kStored));
  EXPECT_EQ(*client->Invalidate(ns, std::span(keys).last(1)), 1u);
  const Seen seen = Take(*watch, 4, keys);
  EXPECT_THAT(seen.what, ElementsAre("stored 0", "stored 1", "stored 2", "removed 2"));
  EXPECT_TRUE(std::ranges::is_sorted(seen.sequences));
  EXPECT_EQ(*client->Invalidate(ns), 2u);
  EXPECT_THAT(Take(*watch, 1, keys).what, ElementsAre("cleared all"));

  // The same once more, from where the first watch began; and from the middle.
  const auto again = client->WatchEvents(kLong, first.next).value();
  EXPECT_THAT(Take(*again, 5, keys).what,
              ElementsAre("stored 0", "stored 1", "stored 2", "removed 2", "cleared all"));
  const auto rest =
      client->WatchEvents(kLong, {cache_->incarnation(), seen.sequences[1] + 1}).value();
  EXPECT_THAT(Take(*rest, 3, keys).what, ElementsAre("stored 2", "removed 2", "cleared all"));
  EXPECT_EQ(EventKindName(EventKind::kUnknown), "unknown");
}

// The daemon's gRPC server is gone for a while; what happens meanwhile is told afterwards.
TEST_F(RemoteTenantTest, AWatchGoesOnAfterALostConnection) {
  Start();
  options_.listen.port = server_->port();
  const auto client = Connect();
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(kBlock));
  const std::vector<BlockKey> keys = KeyChain(1, 3);
  EXPECT_THAT(Put(*client, ns, keys), Each(PutOutcome::kStored));
  const auto watch = client->WatchEvents(kLong).value();
  ASSERT_TRUE(watch->Next(kLong).ok());
  for (size_t round = 0; round < 2; ++round) {
    server_->Stop(0);
    server_.reset();
    const absl::StatusOr<EventBatch> nothing = watch->Next(100'000'000);
    EXPECT_TRUE(nothing.ok()) << nothing.status();
    EXPECT_EQ(cache_->InvalidateKeys(0, std::span(keys).subspan(2 - round, 1)), 1u);
    Serve();
    EXPECT_THAT(Take(*watch, 1, keys).what, ElementsAre("removed " + std::to_string(2 - round)));
  }
}

TEST_F(RemoteTenantTest, MissedEventsAreSaidToBeMissed) {
  cache_options_.event_window = 4;
  Start();
  const auto client = Connect();
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(kBlock));
  const std::vector<BlockKey> keys = KeyChain(1, 9);
  const EventCursor begin = client->WatchEvents(kLong).value()->Next(kLong)->next;
  EXPECT_THAT(Put(*client, ns, keys), Each(PutOutcome::kStored));
  const absl::Status missed = client->WatchEvents(kLong, begin).status();
  EXPECT_EQ(missed.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(missed.message()), HasSubstr("events were missed"));
  EXPECT_THAT(std::string(missed.message()), HasSubstr("the node keeps"));
  const absl::Status other =
      client->WatchEvents(kLong, {begin.incarnation + 1, begin.sequence}).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(other.message()), HasSubstr("another life"));

  // Under way: a watch that is not connected while the window goes on.
  options_.listen.port = server_->port();
  const auto watch = client->WatchEvents(kLong).value();
  ASSERT_TRUE(watch->Next(kLong).ok());
  server_->Stop(0);
  server_.reset();
  EXPECT_EQ(cache_->InvalidateKeys(0, keys), keys.size());
  Serve();
  absl::StatusOr<EventBatch> batch = EventBatch();
  while (batch.ok() && batch->events.empty()) batch = watch->Next(kLong);
  EXPECT_EQ(batch.status().code(), absl::StatusCode::kOutOfRange) << batch.status();
  EXPECT_EQ(watch->Next(kLong).status(), batch.status());  // it is over
}

TEST_F(RemoteTenantTest, AWatchEndsByTimeByCancelAndWithItsObject) {
  Start();
  const auto client = Connect();
  const auto brief = client->WatchEvents(200'000'000);
  absl::Status end = brief.status();
  while (end.ok()) end = (*brief)->Next(kLong).status();
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(client->WatchEvents(0).status().code(), absl::StatusCode::kInvalidArgument);

  auto watch = client->WatchEvents(kLong).value();
  ASSERT_TRUE(watch->Next(kLong).ok());
  std::thread other([&] { watch->Cancel(); });
  end = absl::OkStatus();
  while (end.ok()) end = watch->Next(kLong).status();
  other.join();
  EXPECT_EQ(end.code(), absl::StatusCode::kCancelled);

  watch = client->WatchEvents(kLong).value();
  EXPECT_TRUE(Eventually([&] { return server_->Stats().streams.open == 1; }));  // the new one
  watch = nullptr;
  EXPECT_TRUE(Eventually([&] { return server_->Stats().streams.open == 0; }));
}

// What the rate does not take at once is taken within the put's time; where that does not do, the
// error has the numbers.
TEST_F(RemoteTenantTest, APutWaitsForItsTenantsRate) {
  cache_options_.quotas["team"].of(Resource::kIngest) = {0, 1 << 20};  // and as much at once
  Start();
  const auto client = Connect();
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(kBlock));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(Put(*client, ns, KeyChain(1, 80)), Each(PutOutcome::kStored));
  // A quarter more than what is taken at once, whose last block may be taken in advance.
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(230));
  for (uint64_t i = 0; i < 10; ++i) {  // chains of which nothing is taken at first
    EXPECT_THAT(Put(*client, ns, KeyChain(50 + i, 1)), ElementsAre(PutOutcome::kStored));
  }

  TenantQuota slow;
  slow.of(Resource::kIngest) = {0, 1024};
  ASSERT_TRUE(cache_->SetQuota("team", slow).ok());
  ClientOptions options = Options();
  options.put_timeout_nanos = 300'000'000;
  const auto hasty = Client::Create(options).value();
  const ClientNamespace same = *hasty->OpenNamespace(TestDescriptor(kBlock));
  ASSERT_TRUE(hasty->WaitReady(kLong).ok());
  // A block is 16 seconds' worth; the first may have found a little left.
  absl::Status refused;
  for (uint64_t i = 0; refused.ok() && i < 2; ++i) {
    const BlockKey key = KeyChain(7 + i, 1)[0];
    const std::vector<std::byte> block = MakeBlock(0, key, kBlock);
    const std::byte* const source = block.data();
    PutChain chain;
    chain.keys = {&key, 1};
    refused = hasty->Put(same, chain, {&source, 1}).status();
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("tenant \"team\" is over its quota of ingest_bytes_per_second: at most "
                        "1.00 KiB a second; again in "));
}

// The daemon's log of slow calls names the caller's trace, or one that the call made; the calls
// that one asks for are of one trace.
TEST_F(RemoteTenantTest, TheDaemonLogsTheTraceOfACall) {
  constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
  options_.slow_call_nanos = 1;
  Start();
  const auto client = Connect();
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(kBlock));
  const std::vector<BlockKey> keys = KeyChain(1, 1);
  EXPECT_THAT(Put(*client, ns, keys), Each(PutOutcome::kStored));
  const auto traces_of = [&](const std::function<void()>& call) {
    // A stream's line comes when gRPC is done with it, later than its answer.
    EXPECT_TRUE(Eventually([&] { return server_->Stats().streams.open == 0; }));
    ::testing::internal::CaptureStderr();
    call();
    EXPECT_TRUE(Eventually([&] { return server_->Stats().streams.open == 0; }));
    std::istringstream text(::testing::internal::GetCapturedStderr());
    std::vector<std::string> traces;
    for (std::string line; std::getline(text, line);) {
      const size_t at = line.find(" trace=");
      if (at != line.npos && line.find("Hello") == line.npos) {
        traces.push_back(line.substr(at + 7, sizeof(kTrace) - 1));
      }
    }
    return traces;
  };
  const auto given = traces_of([&] {
    const TraceScope scope(std::string("00-") + kTrace + "-01");
    EXPECT_EQ(client->Touch(ns, keys, 0).value(), 1u);
    EXPECT_EQ(client->Acquire(ns, keys)->size(), 1u);
  });
  EXPECT_THAT(given, ElementsAre(kTrace, kTrace));
  const auto made = traces_of([&] {
    EXPECT_EQ(client->Lookup(ns, keys, 1'000'000, 100)->hit_blocks, 1u);  // Lookup and Pin
    EXPECT_EQ(client->Touch(ns, keys, 0).value(), 1u);
  });
  ASSERT_EQ(made.size(), 3u);
  EXPECT_EQ(made[0], made[1]);
  EXPECT_NE(made[1], made[2]);
  EXPECT_FALSE(TraceOf("00-" + made[2] + "-00").empty()) << made[2];
}

TEST_F(RemoteTenantTest, WhoMayNotWatchIsToldSo) {
  Start();
  ClientOptions options;
  options.endpoint = "kvarve://127.0.0.1:" + std::to_string(server_->port());
  options.timeout_nanos = kLong;
  const auto nobody = Client::Create(options).value();
  EXPECT_EQ(nobody->WatchEvents(kLong).status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(nobody->ReadTenantStats().status().code(), absl::StatusCode::kUnauthenticated);
  server_->Stop(0);
  server_.reset();
  options.timeout_nanos = 100'000'000;
  const auto late = Client::Create(options).value();
  EXPECT_EQ(late->WatchEvents(kLong).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(RemoteTenantTest, AForkedChildLeavesTheWatchAlone) {
  Start();
  const auto client = Connect();
  const ClientNamespace ns = *client->OpenNamespace(TestDescriptor(kBlock));
  const std::vector<BlockKey> keys = KeyChain(1, 2);
  auto watch = client->WatchEvents(kLong).value();
  ASSERT_TRUE(watch->Next(kLong).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_told =
        watch->Next(0).status().code() == absl::StatusCode::kFailedPrecondition &&
        client->WatchEvents(kLong).status().code() == absl::StatusCode::kFailedPrecondition &&
        client->ReadTenantStats().status().code() == absl::StatusCode::kFailedPrecondition;
    watch->Cancel();
    watch = nullptr;
    ::_exit(is_told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(Put(*client, ns, keys), Each(PutOutcome::kStored));
  EXPECT_THAT(Take(*watch, 2, keys).what, ElementsAre("stored 0", "stored 1"));
}

}  // namespace
}  // namespace kvarve
