// Pins, touches, reports, events and administration over a real cache; and that no tenant sees
// another's.
#include <gmock/gmock.h>

#include <atomic>

#include "services/rpc/admin_server.h"
#include "services/rpc/rpc_fixture_testing.h"
#include "services/rpc/watch.h"
#include "storage/cache/event_ring.h"

namespace kvarve {
namespace {

using ::testing::ElementsAre;

class CallsTest : public RpcFixture {
 protected:
  template <typename Request>
  Request On(const v1::Namespace& ns, const std::string& packed) {
    Request request;
    request.set_ns_id(ns.ns_id());
    request.mutable_keys()->set_key_bytes(ns.key_bytes());
    request.mutable_keys()->set_packed(packed);
    return request;
  }
  void Store(const v1::Namespace& ns, const std::string& packed) {
    const size_t count = packed.size() / ns.key_bytes();
    const Written written = Write(
        OpenOf(ns, packed), std::vector<std::string>(count, std::string(ns.block_bytes(), 'z')));
    ASSERT_TRUE(written.status.ok()) << written.status.error_message();
    EXPECT_EQ(written.results, std::vector<v1::PutResult>(count, v1::PUT_STORED));
  }
  v1::PinReply PinOf(const v1::PinRequest& request) {
    v1::PinReply reply;
    const grpc::Status status = Call(&v1::KvCache::Stub::Pin, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  bool Unpin(uint64_t pin) {
    v1::UnpinRequest request;
    v1::UnpinReply reply;
    request.set_pin(pin);
    EXPECT_TRUE(Call(&v1::KvCache::Stub::Unpin, request, &reply).ok());
    return reply.was_pinned();
  }
};

const std::string kA(32, 'a'), kB(32, 'b'), kC(32, 'c');

TEST_F(CallsTest, PinsAreCountedAndEnd) {
  store_options_.pin_bytes_max = 5 * 4096;
  Start();
  const v1::Namespace ns = Open(TestDescriptor(4096));
  Store(ns, kA + kB);
  v1::PinRequest request = On<v1::PinRequest>(ns, kA + kB + kC);
  v1::PinReply none;
  EXPECT_EQ(Call(&v1::KvCache::Stub::Pin, request, &none).error_code(), grpc::INVALID_ARGUMENT);
  request.set_ttl_ms(1'000'000'000);  // cut to the limit
  const v1::PinReply one = PinOf(request), two = PinOf(request), three = PinOf(request);
  EXPECT_EQ(one.hit_blocks(), 2u);
  EXPECT_EQ(one.pinned_blocks(), 2u);
  EXPECT_NE(one.pin(), two.pin());
  EXPECT_EQ(three.pinned_blocks(), 1u);  // the tenant's cap
  EXPECT_EQ(three.hit_blocks(), 2u);
  EXPECT_EQ(cache_->Evict(1ull << 40, "").first, 0u);
  EXPECT_TRUE(Unpin(one.pin()));
  EXPECT_FALSE(Unpin(one.pin()));
  EXPECT_FALSE(Unpin(12345));
  EXPECT_TRUE(Unpin(three.pin()));
  EXPECT_EQ(cache_->Evict(1ull << 40, "").first, 0u);  // two's
  EXPECT_TRUE(Unpin(two.pin()));
  EXPECT_EQ(cache_->Evict(1ull << 40, "").first, 2u);

  Store(ns, kA);
  request.set_ttl_ms(1);
  EXPECT_NE(PinOf(request).pin(), 0u);
  EXPECT_TRUE(Eventually([&] {
    cache_->ExpireHolds();  // the same-host plane does it in a daemon
    return cache_->Stats().leases == 0;
  }));
}

TEST_F(CallsTest, TouchAndPrefetchMakeBlocksRecent) {
  Start();
  const v1::Namespace ns = Open(TestDescriptor(4096));
  for (const std::string& key : {kA, kB, kC}) Store(ns, key);
  v1::TouchReply touched;
  ASSERT_TRUE(Call(&v1::KvCache::Stub::Touch, On<v1::TouchRequest>(ns, kA), &touched).ok());
  EXPECT_EQ(touched.touched_blocks(), 1u);
  cache_->Evict(1, "");
  EXPECT_EQ(Read(ns, kB).blocks.size(), 0u);
  v1::PrefetchReply prefetched;
  ASSERT_TRUE(
      Call(&v1::KvCache::Stub::Prefetch, On<v1::PrefetchRequest>(ns, kC + kB), &prefetched).ok());
  EXPECT_EQ(prefetched.hit_blocks(), 1u);
  EXPECT_EQ(prefetched.started_blocks(), 0u);
  cache_->Evict(1, "");
  EXPECT_EQ(Read(ns, kA).blocks.size(), 0u);
  EXPECT_EQ(Read(ns, kC).blocks.size(), 1u);
}

TEST_F(CallsTest, ReportRemovesOnlyWhatIsDamaged) {
  Start();
  const v1::Namespace ns = Open(TestDescriptor(4096));
  Store(ns, kA + kB);
  BlockKey key;
  std::memcpy(key.bytes.data(), kB.data(), 32);
  LeaseAccount account;
  const AcquireResult read = cache_->Acquire(0, {&key, 1}, &account, 0);
  ASSERT_EQ(read.grants.size(), 1u);
  const_cast<std::byte&>(cache_->Data(read.grants[0].slot)[17]) ^= std::byte{1};
  cache_->Release(read.lease, &account);
  v1::ReportReply reply;
  ASSERT_TRUE(Call(&v1::KvCache::Stub::Report, On<v1::ReportRequest>(ns, kA + kB), &reply).ok());
  EXPECT_EQ(reply.removed_blocks(), 1u);
  EXPECT_EQ(Read(ns, kA + kB).blocks.size(), 1u);
  EXPECT_EQ(cache_->Stats().corrupt_blocks, 1u);
  cache_->ReleaseAll(&account);
}

TEST_F(CallsTest, OtherTenantsAreNotThere) {
  Start();
  NamespaceDescriptor other = TestDescriptor(4096);
  other.tenant = "others";
  const NamespaceInfo info = *cache_->OpenNamespace(other);
  v1::Namespace ns;
  ns.set_ns_id(info.id.bytes.data(), info.id.bytes.size());
  ns.set_key_bytes(32);
  ns.set_block_bytes(4096);
  EXPECT_EQ(Read(ns, kA).status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(Write(OpenOf(ns, kA), {std::string(4096, 'z')}).status.error_code(), grpc::NOT_FOUND);
  v1::LookupReply lookup;
  const grpc::Status theirs =
      Call(&v1::KvCache::Stub::Lookup, On<v1::LookupRequest>(ns, kA), &lookup);
  ns.set_ns_id(std::string(16, 'u'));  // nobody's
  const grpc::Status nobodys =
      Call(&v1::KvCache::Stub::Lookup, On<v1::LookupRequest>(ns, kA), &lookup);
  EXPECT_EQ(theirs.error_code(), nobodys.error_code());
  EXPECT_EQ(theirs.error_message(), nobodys.error_message());
  v1::StatsReply stats;
  ASSERT_TRUE(Call(&v1::KvCache::Stub::Stats, v1::StatsRequest(), &stats).ok());
  EXPECT_EQ(stats.namespaces_size(), 0);
}

TEST_F(CallsTest, HelloRefusesClaims) {
  Start();
  v1::HelloRequest request;
  request.set_version_min(1);
  request.set_version_max(1);
  request.add_namespaces()->set_canonical("nonsense");
  v1::NamespaceClaim* const claim = request.add_namespaces();
  claim->set_canonical(EncodeDescriptor(TestDescriptor(4096)));
  claim->set_digest("short");
  v1::HelloReply reply;
  ASSERT_TRUE(Call(&v1::KvCache::Stub::Hello, request, &reply).ok());
  ASSERT_EQ(reply.namespaces_size(), 2);
  EXPECT_EQ(reply.namespaces(0).code(), static_cast<uint32_t>(grpc::INVALID_ARGUMENT));
  EXPECT_EQ(reply.namespaces(1).code(), static_cast<uint32_t>(grpc::INVALID_ARGUMENT));
  EXPECT_FALSE(reply.namespaces(1).has_opened());
  for (int i = 0; i < 64; ++i) request.add_namespaces();
  EXPECT_EQ(Call(&v1::KvCache::Stub::Hello, request, &reply).error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(CallsTest, EventsComeInOrderAndAgain) {
  Start();
  const v1::Namespace ns = Open(TestDescriptor(4096));
  NamespaceDescriptor other = TestDescriptor(4096);
  other.tenant = "others";
  const NamespaceInfo others = *cache_->OpenNamespace(other);
  Store(ns, kA);  // before the watch

  grpc::ClientContext context;
  Prepare(&context);
  const auto watch = stub_->WatchEvents(&context, {});
  v1::EventBatch batch;
  ASSERT_TRUE(watch->Read(&batch));  // says where it begins
  EXPECT_EQ(batch.events_size(), 0);
  EXPECT_EQ(batch.incarnation(), cache_->incarnation());
  const uint64_t begin = batch.next_sequence();

  Store(ns, kB);
  const std::vector<std::byte> block(4096);
  const std::byte* const source = block.data();
  BlockKey key;
  PutRequest put;
  put.ns = others.handle;
  put.keys = {&key, 1};
  put.sources = {&source, 1};
  PutResult result;
  ASSERT_TRUE(cache_->Put(put, {&result, 1}).ok());  // takes a number, and is not seen
  v1::InvalidateRequest gone = On<v1::InvalidateRequest>(ns, kB);
  v1::InvalidateReply reply;
  ASSERT_TRUE(Call(&v1::KvCache::Stub::Invalidate, gone, &reply).ok());
  gone.set_whole_namespace(true);
  ASSERT_TRUE(Call(&v1::KvCache::Stub::Invalidate, gone, &reply).ok());

  std::vector<v1::Event> events;
  while (events.size() < 3 && watch->Read(&batch))
    events.insert(events.end(), batch.events().begin(), batch.events().end());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].kind(), v1::EVENT_STORED);
  EXPECT_EQ(events[0].key(), kB);
  EXPECT_EQ(events[0].ns_id(), ns.ns_id());
  EXPECT_EQ(events[0].sequence(), begin);
  EXPECT_EQ(events[0].tier(), v1::TIER_HOST);
  EXPECT_EQ(events[1].kind(), v1::EVENT_REMOVED);
  EXPECT_EQ(events[1].sequence(), begin + 2);
  EXPECT_EQ(events[2].kind(), v1::EVENT_CLEARED);
  EXPECT_EQ(events[2].key(), "");
  context.TryCancel();
  EXPECT_EQ(watch->Finish().error_code(), grpc::CANCELLED);

  // Again, from the removal on.
  v1::WatchEventsRequest from;
  from.set_from_sequence(begin + 2);
  from.set_incarnation(cache_->incarnation());
  grpc::ClientContext again;
  Prepare(&again);
  const auto replay = stub_->WatchEvents(&again, from);
  ASSERT_TRUE(replay->Read(&batch));
  ASSERT_EQ(batch.events_size(), 2);
  EXPECT_EQ(batch.events(0).sequence(), begin + 2);
  again.TryCancel();
  replay->Finish();

  const auto refused = [&](uint64_t sequence, uint64_t incarnation) {
    grpc::ClientContext wrong;
    Prepare(&wrong);
    from.set_from_sequence(sequence);
    from.set_incarnation(incarnation);
    const auto stream = stub_->WatchEvents(&wrong, from);
    EXPECT_FALSE(stream->Read(&batch));
    return stream->Finish().error_code();
  };
  EXPECT_EQ(refused(begin, cache_->incarnation() + 1), grpc::OUT_OF_RANGE);
  EXPECT_EQ(refused(begin + 1000, cache_->incarnation()), grpc::OUT_OF_RANGE);
  EXPECT_TRUE(Eventually([&] { return server_->Stats().streams.open == 0; }));
}

TEST(Events, SayTheTier) {
  NamespaceInfo ns;
  ns.key_bytes = 16;
  EventRing ring(8);
  BlockKey key;
  key.bytes[0] = 9;
  ring.Add(CacheEventKind::kStored, 0, key, 3);
  ring.Add(CacheEventKind::kTierChanged, 0, key, 3, CacheTier::kNvme);
  ring.Add(CacheEventKind::kTierChanged, 0, key, 3, CacheTier::kHost);
  ring.Add(CacheEventKind::kRemoved, 0, key, 3);
  std::vector<CacheEvent> events;
  ring.Read(1, 8, &events);
  std::vector<std::pair<v1::EventKind, v1::Tier>> told;
  for (const CacheEvent& event : events) {
    v1::Event out;
    FillEvent(event, ns, &out);
    EXPECT_EQ(out.key(), std::string(1, 9) + std::string(15, 0));
    EXPECT_EQ(out.depth(), 3u);
    told.emplace_back(out.kind(), out.tier());
  }
  EXPECT_THAT(told, ElementsAre(std::pair(v1::EVENT_STORED, v1::TIER_HOST),
                                std::pair(v1::EVENT_TIER_CHANGED, v1::TIER_NVME),
                                std::pair(v1::EVENT_TIER_CHANGED, v1::TIER_HOST),
                                std::pair(v1::EVENT_REMOVED, v1::TIER_UNSPECIFIED)));
}

TEST_F(CallsTest, AWatcherThatIsLeftBehindHears) {
  cache_options_.event_window = 4;
  options_.streams.stall_nanos = 300'000'000;
  Start();
  const v1::Namespace ns = Open(TestDescriptor(4096));
  std::mt19937_64 random(3);
  Store(ns, RandomBytes(32 * 20, random));
  v1::WatchEventsRequest from;
  from.set_from_sequence(1);
  from.set_incarnation(cache_->incarnation());
  grpc::ClientContext context;
  Prepare(&context);
  EXPECT_EQ(stub_->WatchEvents(&context, from)->Finish().error_code(), grpc::OUT_OF_RANGE);
  // An idle watcher is not a stalled one.
  grpc::ClientContext idle;
  Prepare(&idle, 1);
  v1::EventBatch batch;
  const auto watch = stub_->WatchEvents(&idle, {});
  ASSERT_TRUE(watch->Read(&batch));
  EXPECT_FALSE(watch->Read(&batch));
  EXPECT_EQ(watch->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(server_->Stats().streams.stalled, 0u);
}

TEST_F(CallsTest, AdministrationHasItsOwnSocket) {
  const std::string path = folder_ + "/admin.sock";
  std::atomic<bool> drains{false};
  AdminActions actions;
  actions.drain = [&](bool draining) {
    drains = draining;
    return uint64_t{7};
  };
  actions.resize = [](uint64_t bytes) -> absl::StatusOr<uint64_t> {
    if (bytes == 0) return absl::InvalidArgumentError("too little");
    return bytes + 1;
  };
  actions.evict = [](uint64_t bytes, std::string_view tenant) {
    return std::make_pair(tenant.size(), bytes);
  };
  actions.config = [] { return std::string("a: 1\n"); };
  actions.set_quota = [](const std::string& tenant,
                         const std::string& quota) -> absl::StatusOr<std::string> {
    if (tenant.empty()) return absl::InvalidArgumentError("whose?");
    return tenant + " " + quota;
  };
  actions.ask = [](const std::string& json) { return absl::StatusOr<std::string>(json + "!"); };
  EXPECT_EQ(AdminServer::Start("relative", actions).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AdminServer::Start(options_.auth.token_file, actions).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(AdminServer::Start(folder_ + "/none/admin.sock", actions).status().code(),
            absl::StatusCode::kUnavailable);
  auto server = AdminServer::Start(path, actions);
  ASSERT_TRUE(server.ok()) << server.status();
  struct stat file;
  ASSERT_EQ(::stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);

  const auto stub =
      v1::KvAdmin::NewStub(grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials()));
  const auto call = [&](auto method, const auto& request, auto* reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    return (stub.get()->*method)(&context, request, reply);
  };
  v1::DrainRequest drain;
  drain.set_draining(true);
  v1::DrainReply drained;
  ASSERT_TRUE(call(&v1::KvAdmin::Stub::Drain, drain, &drained).ok());
  EXPECT_TRUE(drains);
  EXPECT_EQ(drained.open_streams(), 7u);
  v1::ResizeRequest resize;
  v1::ResizeReply resized;
  EXPECT_EQ(call(&v1::KvAdmin::Stub::Resize, resize, &resized).error_code(),
            grpc::INVALID_ARGUMENT);
  resize.set_capacity_bytes(10);
  ASSERT_TRUE(call(&v1::KvAdmin::Stub::Resize, resize, &resized).ok());
  EXPECT_EQ(resized.capacity_bytes(), 11u);
  v1::EvictRequest evict;
  evict.set_bytes(5);
  evict.set_tenant("abc");
  v1::EvictReply evicted;
  ASSERT_TRUE(call(&v1::KvAdmin::Stub::Evict, evict, &evicted).ok());
  EXPECT_EQ(evicted.evicted_blocks(), 3u);
  EXPECT_EQ(evicted.evicted_bytes(), 5u);
  v1::ConfigReply config;
  ASSERT_TRUE(call(&v1::KvAdmin::Stub::Config, v1::ConfigRequest(), &config).ok());
  EXPECT_EQ(config.yaml(), "a: 1\n");
  v1::SetQuotaRequest quota;
  v1::SetQuotaReply set;
  EXPECT_EQ(call(&v1::KvAdmin::Stub::SetQuota, quota, &set).error_code(), grpc::INVALID_ARGUMENT);
  quota.set_tenant("t");
  quota.set_quota("q");
  ASSERT_TRUE(call(&v1::KvAdmin::Stub::SetQuota, quota, &set).ok());
  EXPECT_EQ(set.quota(), "t q");
  v1::AskRequest ask;
  ask.set_json("{}");
  v1::AskReply asked;
  ASSERT_TRUE(call(&v1::KvAdmin::Stub::Ask, ask, &asked).ok());
  EXPECT_EQ(asked.json(), "{}!");
  grpc::ClientContext none;
  EXPECT_EQ(stub->Config(&none, {}, &config).error_code(), grpc::INVALID_ARGUMENT);
  // The server of blocks does not serve it.
  Start();
  const auto over_tcp = v1::KvAdmin::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(server_->port()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  Prepare(&context);
  EXPECT_EQ(over_tcp->Config(&context, {}, &config).error_code(), grpc::UNIMPLEMENTED);
  server->reset();
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace kvarve
