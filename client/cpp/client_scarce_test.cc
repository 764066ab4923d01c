// Goal: what a daemon had not left is had later, without any call failing for it. Method: the small
// daemon, whose staging is used up and comes back; another client passes the time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cpp/faults_fixture_testing.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;

// A daemon that had no staging left at HELLO is asked again, but not while a view, a grant or a
// hold is out; the calls of meanwhile go on as ever.
TEST_F(FaultsTest, StagingThatWasUsedUpIsAskedForAgainWhenNothingIsOut) {
  StartDaemon();
  Connect();
  PutOne(0);
  client_ = nullptr;
  daemon_->SetMaxStaging(0);
  options_.engine_id = "us";
  Connect();
  const std::vector<std::byte> block = TestBlock(1);
  const std::byte* const source = block.data();
  const std::vector<BlockKey> keys = TestKeys(1, 1);
  const absl::Status none = client_->Put(ns_, {.keys = keys}, {&source, 1}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(none.message()), HasSubstr("limits.staging_total_bytes"));

  // Another client that lacks staging is the clock: its attempts pass the time.
  ClientOptions other = options_;
  other.engine_id = "clock";
  const auto clock = *Client::Create(other);
  const auto attempts_pass = [&](int count) {
    const int now = daemon_->seen().hellos["clock"];
    return daemon_->WaitFor([&](const auto& seen) {
      const auto it = seen.hellos.find("clock");
      return it != seen.hellos.end() && it->second >= now + count;
    });
  };
  const auto in_use = [&](auto value) {
    ASSERT_TRUE(value.ok()) << value.status();
    // One that was under way before may still end.
    ASSERT_TRUE(attempts_pass(1));
    const int before = daemon_->seen().hellos["us"];
    ASSERT_TRUE(attempts_pass(4));
    EXPECT_EQ(daemon_->seen().hellos["us"], before);
  };
  in_use(client_->Acquire(ns_, TestKeys(0, 1)));
  const GrantSet grants = *client_->AcquireGrants(ns_, TestKeys(0, 1), 0);
  in_use(absl::StatusOr<int>(0));
  client_->Release(grants.lease);
  in_use(client_->Lookup(ns_, TestKeys(0, 1), kLong));
}

TEST_F(FaultsTest, StagingThatWasUsedUpIsGivenLaterWithoutAnyCallFailing) {
  StartDaemon();
  Connect();
  PutOne(0);
  client_ = nullptr;
  daemon_->SetMaxStaging(0);
  options_.engine_id = "us";
  Connect();
  ASSERT_TRUE(daemon_->WaitFor([](const auto& seen) { return seen.hellos.at("us") >= 3; }));
  EXPECT_EQ(client_->State().reconnects, 0u) << "the connection is left only for a better one";
  daemon_->SetMaxStaging(1 << 20);
  while (client_->State().reconnects == 0) {
    ASSERT_EQ(client_->Lookup(ns_, TestKeys(0, 2))->hit_blocks, 1u);
  }
  PutOne(1);
  EXPECT_EQ(client_->Lookup(ns_, TestKeys(0, 2))->hit_blocks, 2u);
  // Every connection was left with BYE, and one is there.
  EXPECT_TRUE(daemon_->WaitFor([](const auto& seen) { return seen.connections == 1; }));
  const FakeDaemon::Seen seen = daemon_->seen();
  EXPECT_EQ(seen.byes.size(), static_cast<size_t>(seen.hellos.at("us")));
  for (const auto& [session, token] : seen.byes) EXPECT_EQ(session, 0u);
}

}  // namespace
}  // namespace kvarve
