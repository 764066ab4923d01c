// Every message of the plane as a well-behaved client sends it, against a real server over a real
// cache.
#include "services/local/session.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "client/local/socket.h"
#include "services/local/testing/plane_fixture.h"
#include "storage/block/checksum.h"

namespace kvarve::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kBlock = 64 * kKiB;
constexpr uint8_t kStored = 0, kExists = 1;

class SessionTest : public PlaneFixture {};

TEST_F(SessionTest, WelcomeStatesLimitsAndStaging) {
  StartServer();
  RawClient client(options_.socket_path);
  const auto welcome = client.Hello({OpaqueNamespace("m", kBlock)}, 3 * kMiB);
  ASSERT_TRUE(welcome.ok()) << welcome.status();
  EXPECT_EQ(welcome->body.version, 1);
  EXPECT_EQ(welcome->body.incarnation, cache_->incarnation());
  EXPECT_EQ(welcome->daemon_version, options_.daemon_version);
  EXPECT_NE(welcome->body.session, 0u);
  EXPECT_EQ(welcome->body.max_keys, local::kMaxKeysPerLookup);
  EXPECT_EQ(welcome->body.max_blocks, local::kMaxBlocksPerAcquire);
  EXPECT_EQ(welcome->body.max_message_bytes, local::kMaxMessageBytes);
  EXPECT_EQ(welcome->body.staging_bytes, 4 * kMiB);  // in steps of 2 MiB
  EXPECT_EQ(Stats().staging_bytes, 4 * kMiB);
  ASSERT_EQ(welcome->namespaces.size(), 1u);
  EXPECT_EQ(welcome->namespaces[0].code, 0u);
  EXPECT_EQ(welcome->namespaces[0].block_bytes, kBlock);
  EXPECT_EQ(welcome->namespaces[0].key_bytes, 32u);
}

TEST_F(SessionTest, LimitsFollowTheClientsSendBuffer) {
  StartServer();
  RawClient client(options_.socket_path);
  local::Hello hello;
  hello.body.send_buffer_bytes = 212992;  // of a stock kernel: 8,192 keys of 32 bytes do not pass
  const auto welcome = client.Hello(hello);
  ASSERT_TRUE(welcome.ok());
  EXPECT_EQ(welcome->body.max_message_bytes, 212992 - 1024u);
  EXPECT_EQ(welcome->body.max_keys, (212992 - 1024u - 24 - 72) / 32);
  EXPECT_EQ(welcome->body.max_blocks, local::kMaxBlocksPerAcquire);
  EXPECT_EQ(welcome->body.staging_bytes, 0u);
}

TEST_F(SessionTest, StagingIsSealedAndSharedBothWays) {
  StartServer();
  RawClient client(options_.socket_path);
  local::Hello hello;
  hello.body.staging_bytes = 2 * kMiB;
  const auto packet = client.Call(local::BuildHello(hello, 1));
  ASSERT_TRUE(packet.ok());
  ASSERT_EQ(packet->fds.size(), 1u);
  const int fd = packet->fds[0].get();
  EXPECT_EQ(::fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_NE(::ftruncate(fd, 0), 0);
  EXPECT_NE(::ftruncate(fd, 8 * kMiB), 0);
  struct stat st;
  ASSERT_EQ(::fstat(fd, &st), 0);
  EXPECT_EQ(static_cast<uint64_t>(st.st_size), 2 * kMiB);
}

TEST_F(SessionTest, PutLookupAcquireReadRelease) {
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 4 * kMiB).ok());
  const std::vector<BlockKey> keys = KeyChain(1, 8);
  EXPECT_EQ(client.Lookup(0, keys)->hit_blocks, 0u);
  EXPECT_EQ(client.Acquire(0, keys)->body.blocks, 0u);
  EXPECT_THAT(*client.PutBlocks(0, kBlock, std::span(keys).first(5)), Each(kStored));
  EXPECT_THAT(*client.PutBlocks(0, kBlock, std::span(keys).first(2)), Each(kExists));

  const auto lookup = client.Lookup(0, keys);
  EXPECT_EQ(lookup->hit_blocks, 5u);
  EXPECT_EQ(lookup->host_blocks, 5u);
  EXPECT_EQ(lookup->hold, 0u);

  const auto grant = client.Acquire(0, keys);
  ASSERT_TRUE(grant.ok()) << grant.status();
  ASSERT_EQ(grant->items.size(), 5u);
  EXPECT_EQ(grant->body.block_bytes, kBlock);
  EXPECT_EQ(grant->body.incarnation, cache_->incarnation());
  EXPECT_EQ(grant->body.flags, 0u);
  EXPECT_EQ(cache_->Stats().leased_bytes, 5 * kBlock);
  const NamespaceInfo ns = cache_->Namespaces()[0];
  for (size_t i = 0; i < 5; ++i) {
    const auto block = client.Block(*grant, i);
    ASSERT_EQ(block.size(), kBlock);
    EXPECT_TRUE(IsBlock(0, keys[i], block));
    const uint64_t seed = ChecksumSeed(ns.id, keys[i], kBlock);
    EXPECT_EQ(BlockChecksum(seed, block.data(), kBlock), grant->items[i].checksum);
  }

  std::fill(client.staging().begin(), client.staging().end(), std::byte{0});
  const std::vector<uint64_t> offsets = {7 * kBlock, 0, 3, kBlock * 2, 20 * kBlock, 0, 0, 0};
  const auto read = client.Read(0, keys, offsets);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 5u);
  // Block 1 at 0 and block 2 at 3 overlap: the later one is whole.
  for (const size_t i : {0, 2, 3, 4}) {
    EXPECT_TRUE(IsBlock(0, keys[i], client.staging().subspan(offsets[i], kBlock))) << i;
    EXPECT_EQ((*read)[i], grant->items[i].checksum);
  }

  client.Release(std::vector<uint64_t>{grant->body.lease});
  ASSERT_TRUE(client.Sync().ok());
  EXPECT_EQ(cache_->Stats().leased_bytes, 0u);
  const LocalStats stats = Stats();
  EXPECT_EQ(stats.put_bytes, 5 * kBlock);
  EXPECT_EQ(stats.read_bytes, 5 * kBlock);
  EXPECT_EQ(stats.granted_bytes, 5 * kBlock);
  EXPECT_EQ(stats.requests[static_cast<size_t>(local::Type::kPut)].ok, 2u);
  EXPECT_EQ(stats.requests[static_cast<size_t>(local::Type::kRelease)].ok, 1u);
  uint64_t timed = 0;
  for (const uint64_t n : stats.requests[static_cast<size_t>(local::Type::kPut)].buckets)
    timed += n;
  EXPECT_EQ(timed, 2u);
}

TEST_F(SessionTest, AnotherClientSeesWhatWasAcknowledged) {
  StartServer();
  RawClient writer(options_.socket_path), reader(options_.socket_path);
  ASSERT_TRUE(writer.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  ASSERT_TRUE(reader.Hello({OpaqueNamespace("other", kBlock), OpaqueNamespace("m", kBlock)}).ok());
  for (uint64_t chain = 0; chain < 200; ++chain) {
    const std::vector<BlockKey> keys = KeyChain(chain, 1);
    EXPECT_THAT(*writer.PutBlocks(0, kBlock, keys), ElementsAre(kStored));
    EXPECT_EQ(reader.Lookup(1, keys)->hit_blocks, 1u);
    EXPECT_EQ(reader.Lookup(0, keys)->hit_blocks, 0u);
  }
  const auto keys = KeyChain(17, 1);
  const auto grant = reader.Acquire(1, keys);
  ASSERT_EQ(grant->items.size(), 1u);
  EXPECT_TRUE(IsBlock(0, keys[0], reader.Block(*grant, 0)));
}

TEST_F(SessionTest, ChunksAreReadOnlyForTheClient) {
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  ASSERT_TRUE(client.PutBlocks(0, kBlock, KeyChain(1, 1)).ok());
  const uint64_t request = client.NextRequest();
  RawClient other(options_.socket_path);
  ASSERT_TRUE(other.Hello().ok());
  // By hand, to see the descriptor.
  const local::OpenNamespace open{OpaqueNamespace("m", kBlock),
                                  DigestOf(OpaqueNamespace("m", kBlock))};
  other.Send(local::BuildOpenNamespace(open, request));
  const auto opened = other.Receive();
  ASSERT_EQ(opened->type(), local::Type::kNamespaceOpened);
  const auto added = other.Receive();
  ASSERT_EQ(added->type(), local::Type::kPoolAdd);
  ASSERT_EQ(added->fds.size(), 1u);
  const int fd = added->fds[0].get();
  EXPECT_EQ(::fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
  EXPECT_EQ(::mmap(nullptr, kBlock, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_LT(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY), 10000);
  void* map = ::mmap(nullptr, kBlock, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  EXPECT_NE(::mprotect(map, kBlock, PROT_READ | PROT_WRITE), 0);
  ::munmap(map, kBlock);
}

TEST_F(SessionTest, ShortKeysAndParents) {
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock, 16)}, 2 * kMiB).ok());
  const std::vector<BlockKey> keys = KeyChain(1, 6, 0, 16);
  local::KeysBody body;
  body.keys = 3;
  body.key_bytes = 16;
  const std::vector<uint64_t> offsets = {0, kBlock, 2 * kBlock};
  EXPECT_THAT(*client.Put(body, std::span(keys).first(3), offsets), Each(kStored));
  body.flags = local::kHasParent;
  body.first_depth = 3;
  std::memcpy(body.parent, keys[2].bytes.data(), 16);
  EXPECT_THAT(*client.Put(body, std::span(keys).last(3), offsets), Each(kStored));
  EXPECT_EQ(cache_->Lookup(0, keys), 6u);
}

TEST_F(SessionTest, TouchInvalidateReportCorrupt) {
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  const std::vector<BlockKey> keys = KeyChain(1, 6);
  ASSERT_TRUE(client.PutBlocks(0, kBlock, std::span(keys).first(5)).ok());
  EXPECT_EQ(*client.Touch(0, keys, 7), 5u);
  EXPECT_EQ(*client.ReportCorrupt(0, std::span(keys).first(2)), 0u);  // they are right

  const auto grant = client.Acquire(0, std::span(keys).first(1));
  std::byte* bytes = const_cast<std::byte*>(cache_->Data([&] {
    LeaseAccount account;
    const auto found = cache_->Acquire(0, std::span(keys).first(1), &account, 0);
    cache_->ReleaseAll(&account);
    return found.grants[0].slot;
  }()));
  bytes[77] ^= std::byte{1};
  EXPECT_EQ(*client.ReportCorrupt(0, std::span(keys).first(2)), 1u);
  EXPECT_EQ(client.Lookup(0, keys)->hit_blocks, 0u);
  client.Release(std::vector<uint64_t>{grant->body.lease});

  EXPECT_EQ(*client.Invalidate(0, std::span(keys).subspan(2, 1)), 1u);
  EXPECT_EQ(client.Lookup(0, std::span(keys).subspan(1))->hit_blocks, 1u);
  EXPECT_EQ(*client.Invalidate(0), 3u);
  EXPECT_EQ(client.Lookup(0, std::span(keys).subspan(1))->hit_blocks, 0u);
}

TEST_F(SessionTest, HoldsEndByThemselvesAndByRelease) {
  options_.max_hold_nanos = 50'000'000;
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  const std::vector<BlockKey> keys = KeyChain(1, 6);
  ASSERT_TRUE(client.PutBlocks(0, kBlock, std::span(keys).first(4)).ok());
  const auto held = client.Lookup(0, keys, /*hold_ms=*/3'600'000);  // cut to 50 ms
  EXPECT_EQ(held->hit_blocks, 4u);
  EXPECT_NE(held->hold, 0u);
  EXPECT_TRUE(Eventually([&] { return cache_->Stats().leased_bytes == 0; }));
  EXPECT_EQ(cache_->Stats().holds_expired, 1u);

  const auto again = client.Lookup(0, keys, 50);
  ASSERT_NE(again->hold, 0u);
  EXPECT_NE(again->hold, held->hold);
  client.Release(std::vector<uint64_t>{again->hold, held->hold, 123456});
  ASSERT_TRUE(client.Sync().ok());
  EXPECT_EQ(cache_->Stats().leased_bytes, 0u);
  EXPECT_GE(cache_->Stats().releases_unknown, 2u);
}

TEST_F(SessionTest, BeyondTheLeaseCapCopyOutStillWorks) {
  options_.lease_bytes_per_process = 3 * kBlock;
  StartServer();
  RawClient client(options_.socket_path), sibling(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  ASSERT_TRUE(sibling.Hello({OpaqueNamespace("m", kBlock)}).ok());
  const std::vector<BlockKey> keys = KeyChain(1, 4);
  ASSERT_TRUE(client.PutBlocks(0, kBlock, keys).ok());
  const auto first = client.Acquire(0, std::span(keys).first(2));
  EXPECT_EQ(first->body.blocks, 2u);
  EXPECT_EQ(first->body.flags, 0u);
  // The cap is the process's: another of its sessions has what is left.
  const auto second = sibling.Acquire(0, keys);
  EXPECT_EQ(second->body.blocks, 1u);
  EXPECT_EQ(second->body.flags, local::kOverLeaseCap);
  // A hold tells of no more than could be leased; a plain lookup of all that is there.
  EXPECT_EQ(client.Lookup(0, keys, 1000)->hit_blocks, 0u);
  EXPECT_EQ(client.Lookup(0, keys)->hit_blocks, 4u);
  EXPECT_EQ(client.Read(0, keys, std::vector<uint64_t>{0, kBlock, 2 * kBlock, 3 * kBlock})->size(),
            4u);
  client.Release(std::vector<uint64_t>{first->body.lease});
  ASSERT_TRUE(client.Sync().ok());
  const auto held = client.Lookup(0, keys, 60'000);
  EXPECT_EQ(held->hit_blocks, 2u);
  client.Release(std::vector<uint64_t>{held->hold});
  ASSERT_TRUE(client.Sync().ok());
  EXPECT_EQ(sibling.Acquire(0, std::span(keys).first(2))->body.blocks, 2u);
}

TEST_F(SessionTest, LeasesOfASessionAreLimitedInNumber) {
  options_.max_leases_per_session = 3;
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  const std::vector<BlockKey> keys = KeyChain(1, 1);
  ASSERT_TRUE(client.PutBlocks(0, kBlock, keys).ok());
  uint64_t last = 0;
  for (int i = 0; i < 3; ++i) last = client.Acquire(0, keys)->body.lease;
  const auto refused = client.Acquire(0, keys);
  EXPECT_EQ(refused->body.blocks, 0u);
  EXPECT_EQ(refused->body.flags, local::kOverLeaseCap);
  client.Release(std::vector<uint64_t>{last, last});  // the second time it is unknown
  EXPECT_EQ(client.Acquire(0, keys)->body.blocks, 1u);
  EXPECT_EQ(client.Acquire(0, keys)->body.blocks, 0u);
}

TEST_F(SessionTest, AdminPassesJsonBothWays) {
  options_.admin = [](std::string_view json, uid_t uid) -> absl::StatusOr<std::string> {
    if (json == "bad") return absl::InvalidArgumentError("no such op");
    if (json == "long") return std::string(local::kMaxMessageBytes, 'x');
    return std::string(json) + " by " + std::to_string(uid);
  };
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello().ok());
  EXPECT_EQ(*client.Admin("{}"), "{} by " + std::to_string(::getuid()));
  EXPECT_EQ(client.Admin("bad").status(), absl::InvalidArgumentError("no such op"));
  EXPECT_EQ(client.Admin("long").status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SessionTest, NamespacesRefusedByTheirReason) {
  StartServer();
  RawClient client(options_.socket_path);
  NamespaceDescriptor with_tenant = OpaqueNamespace("m", kBlock);
  with_tenant.tenant = "mine";
  NamespaceDescriptor bad = OpaqueNamespace("m", kBlock);
  bad.model_digest.clear();
  const auto welcome = client.Hello({with_tenant, OpaqueNamespace("m", kBlock), bad});
  ASSERT_TRUE(welcome.ok()) << welcome.status();
  const auto code = [&](int i) {
    return static_cast<absl::StatusCode>(welcome->namespaces[i].code);
  };
  EXPECT_EQ(code(0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1), absl::StatusCode::kOk);
  EXPECT_EQ(code(2), absl::StatusCode::kInvalidArgument);

  const local::OpenNamespace wrong{OpaqueNamespace("n", kBlock),
                                   DigestOf(OpaqueNamespace("m", kBlock))};
  const auto refused = client.Call(local::BuildOpenNamespace(wrong, client.NextRequest()));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("descriptor encodes differently"));
  // The same again is the same handle; another is another.
  EXPECT_EQ(client.Open(OpaqueNamespace("m", kBlock))->handle, welcome->namespaces[1].handle);
  EXPECT_NE(client.Open(OpaqueNamespace("n", kBlock))->handle, welcome->namespaces[1].handle);
}

TEST_F(SessionTest, TenantsShareNothing) {
  options_.default_tenant = "red";
  StartServer();
  LocalServerOptions blue_options = options_;
  blue_options.default_tenant = "blue";
  blue_options.socket_path = folder_ + "/blue.sock";
  auto blue_server = LocalServer::Start(blue_options, cache_.get());
  ASSERT_TRUE(blue_server.ok());
  RawClient red(options_.socket_path), blue(blue_options.socket_path);
  const auto red_welcome = red.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB);
  const auto blue_welcome = blue.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB);
  EXPECT_NE(std::memcmp(red_welcome->namespaces[0].ns_id, blue_welcome->namespaces[0].ns_id, 16),
            0);
  const std::vector<BlockKey> keys = KeyChain(1, 3);
  ASSERT_TRUE(red.PutBlocks(0, kBlock, keys).ok());
  EXPECT_EQ(red.Lookup(0, keys)->hit_blocks, 3u);
  EXPECT_EQ(blue.Lookup(0, keys)->hit_blocks, 0u);
  ASSERT_TRUE(blue.Sync().ok());
  EXPECT_THAT(blue.chunks(), ::testing::IsEmpty());
  ASSERT_TRUE(blue.PutBlocks(0, kBlock, keys).ok());
  const auto grant = blue.Acquire(0, keys);
  EXPECT_EQ(grant->body.blocks, 3u);
  ASSERT_TRUE(red.Sync().ok());
  for (const auto& [id, chunk] : blue.chunks()) EXPECT_FALSE(red.chunks().contains(id));
}

TEST_F(SessionTest, SaltsSurviveARestart) {
  options_.state_dir = folder_ + "/state";
  StartServer();
  const auto id_of = [&] {
    RawClient client(options_.socket_path);
    const auto welcome = client.Hello({OpaqueNamespace("m", kBlock)});
    return std::string(reinterpret_cast<const char*>(welcome->namespaces[0].ns_id), 16);
  };
  const std::string first = id_of();
  server_.reset();
  StartServer();
  EXPECT_EQ(id_of(), first);
  server_.reset();
  options_.state_dir.clear();
  StartServer();
  EXPECT_NE(id_of(), first);
}

TEST_F(SessionTest, VersionsAreNegotiated) {
  options_.version_max = local::kVersionMax + 1;  // a daemon of the next version
  StartServer();
  {
    RawClient client(options_.socket_path);
    EXPECT_EQ(client.Hello()->body.version, local::kVersionMax);
  }
  {
    RawClient client(options_.socket_path);  // a client of the version after that
    local::Hello hello;
    hello.body.version_max = local::kVersionMax + 2;
    EXPECT_EQ(client.Hello(hello)->body.version, local::kVersionMax + 1);
  }
  server_.reset();
  options_.version_min = local::kVersionMax + 1;
  StartServer();
  RawClient client(options_.socket_path);
  const auto refused = client.Hello();
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("1 to 1"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("2 to 2; update the client"));
  EXPECT_FALSE(client.Receive().has_value());
  EXPECT_EQ(Refusals(Refusal::kVersion), 1u);
}

TEST_F(SessionTest, SlowRequestsAreReported) {
  std::atomic<int> slow{0};
  options_.slow_request_nanos = 1;
  options_.on_slow_request = [&](const SlowRequest& request) {
    if (request.type == local::Type::kLookup && request.uid == ::getuid()) ++slow;
  };
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}).ok());
  ASSERT_TRUE(client.Lookup(0, KeyChain(1, 8192)).ok());
  ASSERT_TRUE(client.Sync().ok());
  EXPECT_EQ(slow.load(), 1);
}

TEST_F(SessionTest, TheLargestMessagesPass) {
  cache_options_.arena.capacity_bytes = 512 * kMiB;
  cache_options_.lease_bytes_max = 512 * kMiB;
  options_.lease_bytes_per_process = 512 * kMiB;
  StartServer();
  RawClient client(options_.socket_path);
  constexpr uint64_t kSmall = 4096;
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kSmall)}, 16 * kMiB).ok());
  const std::vector<BlockKey> keys = KeyChain(1, 8192);
  const auto put = client.PutBlocks(0, kSmall, std::span(keys).first(4096));
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(put->size(), 4096u);
  EXPECT_THAT(*put, Each(kStored));
  EXPECT_EQ(client.Lookup(0, keys)->hit_blocks, 4096u);
  const auto grant = client.Acquire(0, std::span(keys).first(4096));
  ASSERT_EQ(grant->items.size(), 4096u);
  EXPECT_TRUE(IsBlock(0, keys[4095], client.Block(*grant, 4095)));
  EXPECT_EQ(*client.Touch(0, keys, 1), 4096u);
}

}  // namespace
}  // namespace kvarve::testing
