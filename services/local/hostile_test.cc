// Clients that mean harm: malformed packets, foreign handles, offsets and counts, lying parents,
// answers left unread, descriptors nobody asked for. Each costs its sender an ERROR or the
// connection, and nobody else anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "services/local/session.h"
#include "services/local/testing/plane_fixture.h"
#include "storage/block/checksum.h"
#include "storage/testing/seeded_random.h"

namespace kvarve::testing {
namespace {

using local::Builder;
using local::Type;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kBlock = 64 * kKiB;
constexpr uint8_t kStored = 0, kExists = 1, kRejectedParent = 2;

class HostileTest : public PlaneFixture {
 protected:
  // A well-behaved client finds all as it should be.
  void ExpectServes() {
    RawClient client(options_.socket_path);
    const auto welcome = client.Hello({OpaqueNamespace("good", kBlock)}, 2 * kMiB);
    ASSERT_TRUE(welcome.ok()) << welcome.status();
    const std::vector<BlockKey> keys = KeyChain(++good_chain_, 2);
    EXPECT_THAT(*client.PutBlocks(0, kBlock, keys), Each(kStored));
    const auto grant = client.Acquire(0, keys);
    ASSERT_EQ(grant->body.blocks, 2u);
    EXPECT_TRUE(IsBlock(0, keys[1], client.Block(*grant, 1)));
    client.Bye();
    EXPECT_TRUE(client.ReceiveEnd());
    EXPECT_EQ(cache_->CheckInvariants(), absl::OkStatus());
  }
  static std::string Request(Type type, const local::KeysBody& body, std::span<const BlockKey> keys,
                             std::span<const uint64_t> extras = {}) {
    Builder builder(type, 77);
    builder.Add(body).AddKeys(keys, 32).AddBytes(extras.data(), extras.size_bytes());
    return std::move(builder).Finish();
  }
  static local::KeysBody Body(uint32_t ns, uint32_t keys) {
    local::KeysBody body;
    body.ns = ns;
    body.keys = keys;
    body.key_bytes = 32;
    return body;
  }

  uint64_t good_chain_ = 1'000'000;
};

// What a packet of one type may look like after damage of every kind.
std::vector<std::string> Damaged(const std::string& message) {
  std::vector<std::string> packets;
  for (const size_t cut : {size_t{1}, size_t{8}, message.size() - sizeof(local::Header)}) {
    if (cut >= message.size()) continue;
    packets.push_back(message.substr(0, message.size() - cut));  // body_bytes does not match
    std::string honest = packets.back();                         // body_bytes does
    const uint32_t body_bytes = static_cast<uint32_t>(honest.size() - sizeof(local::Header));
    std::memcpy(honest.data() + offsetof(local::Header, body_bytes), &body_bytes, 4);
    packets.push_back(honest);
  }
  packets.push_back(message + "trailing");
  for (size_t at = sizeof(local::Header); at + 4 <= std::min<size_t>(message.size(), 112);
       at += 4) {
    std::string huge = message;
    std::memset(huge.data() + at, 0xff, 4);  // counts, lengths, handles, flags
    packets.push_back(huge);
  }
  return packets;
}

TEST_F(HostileTest, DamagedRequestsOfEveryType) {
  options_.max_ended_per_process = 1'000'000;
  StartServer();
  const std::vector<BlockKey> keys = KeyChain(1, 4);
  const std::vector<uint64_t> offsets = {0, 1, 2, 3};
  const local::OpenNamespace open{OpaqueNamespace("m", kBlock),
                                  DigestOf(OpaqueNamespace("m", kBlock))};
  const uint64_t lease = 5;
  const std::vector<std::string> messages = {
      Request(Type::kLookup, Body(0, 4), keys),
      Request(Type::kAcquire, Body(0, 4), keys),
      Request(Type::kPut, Body(0, 4), keys, offsets),
      Request(Type::kRead, Body(0, 4), keys, offsets),
      Request(Type::kTouch, Body(0, 4), keys),
      Request(Type::kReportCorrupt, Body(0, 4), keys),
      local::BuildOpenNamespace(open, 77),
      std::move(Builder(Type::kRelease, 77).Add(local::ReleaseBody{1, 0}).Add(lease)).Finish(),
      std::move(Builder(Type::kInvalidate, 77)
                    .Add(local::InvalidateBody{0, 1, 32, 0})
                    .AddKeys(std::span(keys).first(1), 32))
          .Finish(),
      std::move(Builder(Type::kPoolDropped, 77).Add(local::PoolDropBody{3})).Finish(),
      std::move(Builder(Type::kAdmin, 77).Add(local::AdminBody{2, 0}).AddBytes("{}", 2)).Finish(),
      Builder(Type::kSync, 77).Finish() + "x",
  };
  for (const std::string& message : messages) {
    for (const std::string& packet : Damaged(message)) {
      RawClient client(options_.socket_path);
      ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
      client.Send(packet);
      client.Send(Builder(Type::kSync, 78).Finish());
      // An answer or none; then the session still works.
      std::optional<Packet> answer = client.Receive();
      while (answer.has_value() && answer->header().request != 78) answer = client.Receive();
      ASSERT_TRUE(answer.has_value());
      EXPECT_EQ(answer->type(), Type::kSyncReply);
      client.Bye();
    }
  }
  ExpectServes();
}

TEST_F(HostileTest, ManyMalformedMessagesEndTheSession) {
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello().ok());
  size_t errors = 0;
  while (client.TrySend("shorter than a header")) {
    const auto packet = client.Receive();
    if (!packet.has_value()) break;
    EXPECT_EQ(packet->type(), Type::kError);
    ++errors;
  }
  EXPECT_LE(errors, kMaxMalformedPerSession);
  EXPECT_TRUE(Eventually([&] { return Ends(SessionEnd::kProtocol) == 1; }));
  EXPECT_EQ(Stats().malformed, kMaxMalformedPerSession);
  ExpectServes();
}

TEST_F(HostileTest, RandomPackets) {
  options_.max_ended_per_process = 1'000'000;
  StartServer();
  SeededRandom random(20261130);
  std::unique_ptr<RawClient> client;
  for (int i = 0; i < 4000; ++i) {
    if (client == nullptr) {
      client = std::make_unique<RawClient>(options_.socket_path);
      ASSERT_TRUE(client->Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
    }
    const std::string packet = RandomPacket(&random);
    if (!client->TrySend(packet)) {
      client.reset();
      continue;
    }
    pollfd poll{client->socket(), POLLIN, 0};
    while (client != nullptr && ::poll(&poll, 1, 0) == 1) {
      if (!client->Receive().has_value()) client.reset();
    }
  }
  client.reset();
  ExpectServes();
}

TEST_F(HostileTest, AnOversizedPacketIsRefused) {
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello().ok());
  client.Send(std::string(local::kMaxMessageBytes + 1, 'x'));
  const auto packet = client.Receive();
  ASSERT_TRUE(packet.has_value());
  EXPECT_EQ(local::ParseError(packet->bytes).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*client.Sync(), 0u);
}

TEST_F(HostileTest, UnknownTypesAndRepeatedHello) {
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello().ok());
  EXPECT_EQ(client.Hello().status().code(), absl::StatusCode::kFailedPrecondition);
  for (const Type type : {Type::kWelcome, Type::kGrant, Type::kPoolAdd, static_cast<Type>(999)}) {
    const auto answer = client.Call(Builder(type, 9).Finish());
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnimplemented);
  }
  EXPECT_EQ(Stats().malformed, 4u);
}

TEST_F(HostileTest, HandlesOffsetsAndKeySizesOfOthers) {
  StartServer();
  RawClient victim(options_.socket_path), client(options_.socket_path), bare(options_.socket_path);
  ASSERT_TRUE(victim.Hello({OpaqueNamespace("v", kBlock)}, 2 * kMiB).ok());
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  ASSERT_TRUE(bare.Hello({OpaqueNamespace("m", kBlock)}).ok());
  const std::vector<BlockKey> keys = KeyChain(1, 2);
  ASSERT_TRUE(victim.PutBlocks(0, kBlock, keys).ok());
  const uint64_t lease = victim.Acquire(0, keys)->body.lease;

  // Handles are the session's own: 1 is open in the cache, not here.
  const auto invalid = [](const auto& result) { return absl::IsInvalidArgument(result.status()); };
  EXPECT_TRUE(invalid(client.Lookup(1, keys)));
  EXPECT_TRUE(invalid(client.Acquire(0xffffffff, keys)));
  EXPECT_TRUE(invalid(client.Invalidate(1)));
  EXPECT_EQ(client.Lookup(0, keys)->hit_blocks, 0u);

  // Offsets: beyond the end, across it, and such that adding the length wraps around.
  local::KeysBody body = Body(0, 1);
  const auto one = std::span(keys).first(1);
  for (const uint64_t offset : {uint64_t{2 * kMiB}, 2 * kMiB - kBlock + 1, ~uint64_t{0},
                                ~uint64_t{0} - kBlock + 2, uint64_t{1} << 63}) {
    const std::vector<uint64_t> offsets = {offset};
    EXPECT_TRUE(invalid(client.Put(body, one, offsets))) << offset;
    EXPECT_TRUE(invalid(client.Read(0, one, offsets))) << offset;
  }
  EXPECT_EQ(client.Lookup(0, keys)->hit_blocks, 0u);
  const std::vector<uint64_t> last = {2 * kMiB - kBlock};
  EXPECT_THAT(*client.Put(body, one, last), ElementsAre(kStored));
  EXPECT_EQ(bare.Put(body, one, last).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(bare.Read(0, one, last).status().code(), absl::StatusCode::kFailedPrecondition);

  // Keys of another length than the namespace's.
  body.key_bytes = 16;
  EXPECT_TRUE(invalid(
      client.Call(std::move(Builder(Type::kLookup, 3).Add(body).AddKeys(one, 16)).Finish())));

  // Another session's lease, and made-up ones.
  client.Release(std::vector<uint64_t>{lease, 0, ~0ull});
  ASSERT_TRUE(client.Sync().ok());
  EXPECT_EQ(cache_->Stats().leased_bytes, 2 * kBlock);
  EXPECT_EQ(cache_->Stats().releases_unknown, 3u);

  client.PoolDropped(12345);
  client.PoolDropped(client.chunks().begin()->first);  // not withdrawn
  EXPECT_EQ(*client.Sync(), 1u);
  ExpectServes();
}

TEST_F(HostileTest, LyingParents) {
  cache_options_.arena.capacity_bytes = 64 * kMiB;
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(
      client.Hello({OpaqueNamespace("m", kBlock), OpaqueNamespace("n", kBlock)}, 2 * kMiB).ok());
  const std::vector<BlockKey> keys = KeyChain(1, 4);
  const std::vector<uint64_t> offsets = {0, 0, 0, 0};
  const auto put = [&](uint32_t ns, std::vector<BlockKey> chain, const BlockKey& parent,
                       uint32_t depth) {
    local::KeysBody body = Body(ns, static_cast<uint32_t>(chain.size()));
    body.flags = local::kHasParent;
    body.first_depth = depth;
    std::memcpy(body.parent, parent.bytes.data(), 32);
    return client.Put(body, chain, std::span(offsets).first(chain.size()));
  };
  EXPECT_TRUE(put(0, {keys[0]}, keys[0], 1).ok());                    // itself
  EXPECT_TRUE(put(0, {keys[1], keys[2], keys[1]}, keys[2], 1).ok());  // a cycle
  EXPECT_TRUE(put(1, {keys[3]}, keys[0], 1).ok());                    // another namespace's
  EXPECT_TRUE(put(0, {keys[3]}, KeyChain(9, 1)[0], 77).ok());         // nobody
  EXPECT_TRUE(absl::IsInvalidArgument(put(0, {keys[3]}, keys[0], 0xffffffff).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(put(0, {keys[3]}, keys[0], kMaxDepth).status()));
  // None of it is in the way of eviction: the arena can be filled over.
  for (uint64_t chain = 100; chain < 160; ++chain) {
    EXPECT_THAT(*client.PutBlocks(0, kBlock, KeyChain(chain, 32)), Each(kStored)) << chain;
  }
  EXPECT_GT(cache_->Stats().evicted_blocks, 0u);
  ExpectServes();
}

TEST_F(HostileTest, ScribblingDuringPutsNeverPublishesAWrongChecksum) {
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    auto* bytes = reinterpret_cast<volatile uint8_t*>(client.staging().data());
    for (uint8_t value = 0; !stop.load(); ++value) {
      for (uint64_t at = 0; at < kBlock; at += 512) bytes[at] = value;
    }
  });
  const NamespaceInfo ns = cache_->Namespaces()[0];
  const local::KeysBody body = Body(0, 1);
  const std::vector<uint64_t> offset = {0};
  for (uint64_t i = 0; i < 1000; ++i) {
    const std::vector<BlockKey> key = KeyChain(i, 1);
    ASSERT_THAT(*client.Put(body, key, offset), ElementsAre(kStored));
    const auto grant = client.Acquire(0, key);
    const auto block = client.Block(*grant, 0);
    EXPECT_EQ(BlockChecksum(ChecksumSeed(ns.id, key[0], kBlock), block.data(), kBlock),
              grant->items[0].checksum);
    client.Release(std::vector<uint64_t>{grant->body.lease});
  }
  stop = true;
  scribbler.join();
}

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += !entry.path().empty();
  }
  return count;
}

TEST_F(HostileTest, DescriptorsSentAlongCostNothing) {
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello().ok());
  ASSERT_TRUE(client.Sync().ok());
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) {
    const std::string message = Builder(Type::kSync, client.NextRequest()).Finish();
    std::vector<int> fds(200, 0);
    std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
    iovec part{const_cast<char*>(message.data()), message.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
    ASSERT_GE(::sendmsg(client.socket(), &header, 0), 0);
    ASSERT_EQ(client.Receive()->type(), Type::kSyncReply);
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(HostileTest, AReaderThatStopsIsGivenUpByBytes) {
  options_.admin = [](std::string_view, uid_t) -> absl::StatusOr<std::string> {
    return std::string(200 * kKiB, 'x');
  };
  options_.max_stuck_nanos = int64_t{3600} * 1'000'000'000;
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello().ok());
  const std::string request =
      std::move(Builder(Type::kAdmin, 5).Add(local::AdminBody{2, 0}).AddBytes("{}", 2)).Finish();
  int sent = 0;
  while (sent < 100'000 && client.TrySend(request)) ++sent;
  EXPECT_LT(sent, 100'000);
  EXPECT_TRUE(Eventually([&] { return Ends(SessionEnd::kSlowReader) == 1; }));
  ExpectServes();
}

TEST_F(HostileTest, AReaderThatStopsIsGivenUpByTime) {
  options_.admin = [](std::string_view, uid_t) -> absl::StatusOr<std::string> {
    return std::string(200 * kKiB, 'x');
  };
  options_.max_stuck_nanos = 50'000'000;
  options_.max_queued_bytes = 1 << 30;
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello().ok());
  const std::string request =
      std::move(Builder(Type::kAdmin, 5).Add(local::AdminBody{2, 0}).AddBytes("{}", 2)).Finish();
  for (int i = 0; i < 40 && client.TrySend(request); ++i) {
  }
  EXPECT_TRUE(Eventually([&] { return Ends(SessionEnd::kSlowReader) == 1; }));
}

TEST_F(HostileTest, AReaderThatIsLateGetsAllInOrder) {
  options_.admin = [](std::string_view json, uid_t) -> absl::StatusOr<std::string> {
    return std::string(json) + std::string(100 * kKiB, 'x');
  };
  options_.max_queued_bytes = 64 << 20;
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello().ok());
  constexpr int kRequests = 60;  // 6 MB of answers: more than any socket holds
  for (uint8_t i = 0; i < kRequests; ++i) {
    client.Send(
        std::move(Builder(Type::kAdmin, 100u + i).Add(local::AdminBody{1, 0}).AddBytes(&i, 1))
            .Finish());
  }
  for (uint8_t i = 0; i < kRequests; ++i) {
    const auto packet = client.Receive();
    ASSERT_TRUE(packet.has_value());
    ASSERT_EQ(packet->type(), Type::kAdminReply);
    EXPECT_EQ(packet->header().request, 100u + i);
    EXPECT_EQ(packet->bytes[sizeof(local::Header) + sizeof(local::AdminBody)], i);
  }
  EXPECT_TRUE(client.Sync().ok());
}

// A client has as many open as the tenant may have; what a client leaves empty behind it is
// forgotten for the next, and what holds blocks is not.
TEST_F(HostileTest, NamespacesAreLimited) {
  cache_options_.max_namespaces_per_tenant = 5;
  StartServer();
  for (int round = 0; round < 3; ++round) {
    RawClient client(options_.socket_path);
    ASSERT_TRUE(client.Hello({}, 2 * kMiB).ok());
    const int first = round * 5;
    // The one before may not have ended yet.
    for (int n = first; n < first + 5 - round; ++n) {
      EXPECT_TRUE(Eventually([&] {
        return client.Open(OpaqueNamespace("m" + std::to_string(n), kBlock)).ok();
      })) << n;
    }
    const auto more = client.Open(OpaqueNamespace("more", kBlock));
    EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(more.status().message()), HasSubstr("limits.namespaces_per_tenant"));
    ASSERT_TRUE(client.PutBlocks(0, kBlock, KeyChain(1, 1)).ok());
  }
  EXPECT_EQ(cache_->Stats().namespaces, 5u);
  EXPECT_EQ(cache_->Stats().index.entries, 3u);
}

TEST_F(HostileTest, RepeatedPutsAndDuplicateKeys) {
  StartServer();
  RawClient client(options_.socket_path);
  ASSERT_TRUE(client.Hello({OpaqueNamespace("m", kBlock)}, 2 * kMiB).ok());
  const BlockKey key = KeyChain(1, 1)[0];
  const std::vector<BlockKey> same(5, key);
  const auto results = client.PutBlocks(0, kBlock, same);
  ASSERT_TRUE(results.ok());
  for (const uint8_t result : *results) {
    EXPECT_TRUE(result == kStored || result == kExists || result == kRejectedParent);
  }
  EXPECT_EQ(std::count(results->begin(), results->end(), kStored), 1);
  ExpectServes();
}

}  // namespace
}  // namespace kvarve::testing
