// The door: who may come in, how many, and what happens without file descriptors.
#include "services/local/acceptor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "services/local/testing/plane_fixture.h"

namespace kvarve::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBlock = 64 * kKiB;

class AcceptorTest : public PlaneFixture {
 protected:
  // What the daemon says to a connection that has not said anything itself.
  absl::Status FirstWord() {
    RawClient client(options_.socket_path);
    const auto packet = client.Receive();
    if (!packet.has_value()) return absl::UnavailableError("closed");
    EXPECT_EQ(packet->type(), local::Type::kError);
    EXPECT_TRUE(client.ReceiveEnd());
    return local::ParseError(packet->bytes);
  }
  // HELLO as another user, who can reach the socket.
  std::unique_ptr<Puppet> ClientAs(uid_t uid, gid_t gid, std::vector<gid_t> groups) {
    return std::make_unique<Puppet>([=, path = options_.socket_path](Puppet::Strings& strings) {
      strings.Listen();
      if (::setgroups(groups.size(), groups.data()) != 0 || ::setgid(gid) != 0 ||
          ::setuid(uid) != 0) {
        strings.Say("not root");
        return;
      }
      RawClient client(path);
      const auto welcome = client.Hello({OpaqueNamespace("m", kBlock)});
      if (!welcome.ok()) {
        strings.Say(std::string(absl::StatusCodeToString(welcome.status().code())));
        return;
      }
      const auto admin = client.Admin("{}");
      std::string id(reinterpret_cast<const char*>(welcome->namespaces[0].ns_id), 16);
      strings.Say((admin.ok() ? "admin " : "user  ") + id);
    });
  }
  void OpenToAll() {
    ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
    ASSERT_EQ(::chmod(options_.socket_path.c_str(), 0666), 0);
  }
};

TEST_F(AcceptorTest, OnlyAllowedUsers) {
  options_.admit_root = false;
  options_.allowed_uids = {::getuid() + 1};
  StartServer();
  EXPECT_EQ(FirstWord().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Refusals(Refusal::kNotAllowed), 1u);
  server_.reset();
  options_.allowed_gids = {::getgid()};
  StartServer();
  RawClient client(options_.socket_path);
  EXPECT_TRUE(client.Hello().ok());
}

TEST_F(AcceptorTest, UsersAndGroupsAndTheirTenants) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be several users";
  options_.allowed_uids = {40001};
  options_.allowed_gids = {50002, 50003};
  options_.tenants = {{std::nullopt, 50003, "supplementary"}, {40001, std::nullopt, "by uid"}};
  options_.admin = [](std::string_view, uid_t) -> absl::StatusOr<std::string> { return "{}"; };
  options_.admin_uids = {40002};
  auto by_uid = ClientAs(40001, 50001, {});
  auto by_gid = ClientAs(40002, 50002, {});
  auto by_group = ClientAs(40003, 50009, {50010, 50003});
  auto nobody = ClientAs(40004, 50004, {50005});
  StartServer();
  OpenToAll();
  const std::string uid_id = by_uid->Ask("go"), gid_id = by_gid->Ask("go"),
                    group_id = by_group->Ask("go");
  EXPECT_EQ(uid_id.substr(0, 6), "user  ");
  EXPECT_EQ(gid_id.substr(0, 6), "admin ");
  EXPECT_EQ(group_id.substr(0, 6), "user  ");
  EXPECT_NE(uid_id.substr(6), gid_id.substr(6));  // tenants: "by uid", the default, "supplementary"
  EXPECT_NE(uid_id.substr(6), group_id.substr(6));
  EXPECT_NE(gid_id.substr(6), group_id.substr(6));
  EXPECT_EQ(nobody->Ask("go"), "PERMISSION_DENIED");
}

// Two tenants with the same descriptor and the same keys: what one has stored is for the other as
// if it had never been, in every request there is.
TEST_F(AcceptorTest, AnotherTenantsBlocksAreNoHits) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be several users";
  options_.allowed_uids = {40001, 40002};
  options_.tenants = {{40001, std::nullopt, "victim"}, {40002, std::nullopt, "attacker"}};
  std::vector<BlockKey> keys(4);
  for (size_t i = 0; i < keys.size(); ++i) keys[i].bytes.fill(static_cast<uint8_t>(i + 1));
  const auto client_of = [&](uid_t uid) {
    return std::make_unique<Puppet>([=, path = options_.socket_path](Puppet::Strings& strings) {
      strings.Listen();
      if (::setgroups(0, nullptr) != 0 || ::setuid(uid) != 0) return strings.Say("not root");
      RawClient client(path);
      if (!client.Hello({OpaqueNamespace("m", kBlock)}, 1 << 20).ok()) return strings.Say("");
      const uint64_t offsets[] = {0, kBlock, 2 * kBlock, 3 * kBlock};
      for (std::string word = "hello";; word = strings.Listen()) {
        if (word.empty()) return;
        if (word == "put") {
          strings.Say(std::to_string(client.PutBlocks(0, kBlock, keys)->front()));
        } else if (word == "look") {
          // hits, grants, copies, touched, found corrupt, invalidated
          std::string counts;
          const auto add = [&counts](uint64_t count) { counts += std::to_string(count) + " "; };
          add(client.Lookup(0, keys)->hit_blocks);
          add(client.Acquire(0, keys)->body.blocks);
          add(client.Read(0, keys, offsets)->size());
          add(*client.Touch(0, keys, 7));
          add(*client.ReportCorrupt(0, keys));
          add(*client.Invalidate(0, keys));
          strings.Say(counts);
        } else if (word == "chunks") {
          if (!client.Sync().ok()) return strings.Say("no sync");
          std::string ids = "chunks ";
          for (const auto& [id, bytes] : client.chunks()) ids += std::to_string(id) + " ";
          strings.Say(ids);
        } else {
          strings.Say("ready");
        }
      }
    });
  };
  auto victim = client_of(40001), attacker = client_of(40002);
  StartServer();
  OpenToAll();
  ASSERT_EQ(victim->Ask("go"), "ready");
  ASSERT_EQ(attacker->Ask("go"), "ready");
  ASSERT_EQ(victim->Ask("put"), "0");
  EXPECT_EQ(attacker->Ask("look"), "0 0 0 0 0 0 ");
  EXPECT_EQ(attacker->Ask("chunks"), "chunks ");  // none of the victim's memory is mapped
  // What it stores is its own: stored, not found to exist.
  EXPECT_EQ(attacker->Ask("put"), "0");
  EXPECT_EQ(attacker->Ask("look"), "4 4 4 4 0 4 ");
  const std::string own = attacker->Ask("chunks");
  EXPECT_NE(own, "chunks ");
  EXPECT_EQ(attacker->Ask("look"), "0 0 0 0 0 0 ");
  // And the victim's are all there still.
  EXPECT_NE(victim->Ask("chunks"), own);
  EXPECT_EQ(victim->Ask("look"), "4 4 4 4 0 4 ");
}

TEST_F(AcceptorTest, SessionsAUserAndInAll) {
  options_.max_sessions_per_uid = 3;
  StartServer();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(options_.socket_path));
    ASSERT_TRUE(clients.back()->Hello().ok());
  }
  const absl::Status refused = FirstWord();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Refusals(Refusal::kSessionsOfUid), 1u);
  clients.pop_back();
  EXPECT_TRUE(Eventually([&] { return Stats().sessions == 2; }));
  RawClient again(options_.socket_path);
  EXPECT_TRUE(again.Hello().ok());
  server_.reset();
  clients.clear();
  options_.max_sessions = 1;
  StartServer();
  RawClient only(options_.socket_path);
  EXPECT_TRUE(only.Hello().ok());
  EXPECT_EQ(FirstWord().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Refusals(Refusal::kSessions), 1u);
}

TEST_F(AcceptorTest, SessionsOfATenant) {
  options_.quotas["default"].of(Resource::kConnections) = {0, 2};
  StartServer();
  auto one = std::make_unique<RawClient>(options_.socket_path);
  RawClient two(options_.socket_path);
  ASSERT_TRUE(one->Hello().ok());
  ASSERT_TRUE(two.Hello().ok());
  const absl::Status refused = FirstWord();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(refused.message()),
            "tenant \"default\" is over its quota of connections: 2 in use of at most 2");
  EXPECT_EQ(Refusals(Refusal::kSessionsOfTenant), 1u);
  EXPECT_EQ(Stats().sessions_of_tenant.front().second, 2u);
  one.reset();
  EXPECT_TRUE(Eventually([&] { return Stats().sessions == 1; }));
  RawClient again(options_.socket_path);
  EXPECT_TRUE(again.Hello().ok());
  server_.reset();
  options_.quotas["other"].of(Resource::kConnections) = {options_.max_sessions + 1ull,
                                                         QuotaRange::kNoCeiling};
  EXPECT_EQ(LocalServer::Start(options_, cache_.get()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(AcceptorTest, HelloComesInTime) {
  options_.hello_timeout_nanos = 30'000'000;
  StartServer();
  EXPECT_EQ(FirstWord().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Refusals(Refusal::kHelloTimeout), 1u);
  EXPECT_TRUE(Eventually([&] { return Stats().sessions == 0; }));
  EXPECT_EQ(Stats().sessions_opened, 0u);
}

TEST_F(AcceptorTest, HelloComesFirst) {
  options_.hello_timeout_nanos = 60'000'000'000;  // on a busy machine, too
  StartServer();
  RawClient client(options_.socket_path);
  EXPECT_EQ(client.Sync().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(client.ReceiveEnd());
  RawClient bad(options_.socket_path);
  const std::string garbage(100, 'x');
  EXPECT_EQ(bad.Call(garbage).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Refusals(Refusal::kBadHello), 2u);
  EXPECT_TRUE(Eventually([&] { return Stats().sessions == 0; }));
  EXPECT_EQ(Stats().sessions_opened, 0u);
}

TEST_F(AcceptorTest, WithoutDescriptorsClientsAreTurnedAway) {
  // The client is another process: its descriptors are not the daemon's.
  Puppet puppet([path = options_.socket_path](Puppet::Strings& strings) {
    while (!strings.Listen().empty()) {
      RawClient client(path);
      const auto welcome = client.Hello();
      strings.Say(welcome.ok() ? "ok"
                               : std::string(absl::StatusCodeToString(welcome.status().code())));
    }
  });
  StartServer();
  ASSERT_EQ(puppet.Ask("go"), "ok");
  EXPECT_TRUE(Eventually([&] { return Stats().sessions == 0 && Stats().processes == 0; }));
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const rlimit none{static_cast<rlim_t>(next.get()) + 1, before.rlim_max};
  std::vector<UniqueFd> holes;  // below the limit, should there be any
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  for (int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC); fd >= 0;
       fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) {
    holes.emplace_back(fd);
  }
  for (int i = 0; i < 5; ++i) EXPECT_EQ(puppet.Ask("go"), "RESOURCE_EXHAUSTED");
  EXPECT_EQ(Refusals(Refusal::kDescriptors), 5u);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(puppet.Ask("go"), "ok");
}

TEST_F(AcceptorTest, ASecondServerIsRefusedAndAStaleSocketReplaced) {
  StartServer();
  const auto second = LocalServer::Start(options_, cache_.get());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("another kvarved (pid " + std::to_string(::getpid()) + ") serves"));
  RawClient client(options_.socket_path);
  EXPECT_TRUE(client.Hello().ok());
  server_.reset();
  EXPECT_NE(::access(options_.socket_path.c_str(), F_OK), 0);
  StartServer();
  struct stat st;
  ASSERT_EQ(::stat(options_.socket_path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0660u);
}

}  // namespace
}  // namespace kvarve::testing
