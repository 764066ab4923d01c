// Goal: the comparison's other side really stores and returns the bytes. Method: a redis-server of
// the test's own.
#include "tests/perf/redis_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <vector>

#include "storage/testing/block_generator.h"
#include "tests/perf/bench_daemon.h"

namespace kvarve::perf {
namespace {

TEST(RedisClientTest, WhatWasPutComesBackInPlace) {
  auto server = BenchDaemon::Start(
      {"redis-server", "--port", "0", "--unixsocket", "SOCKET", "--save", "", "--appendonly", "no"},
      SOCK_STREAM);
  if (!server.ok()) GTEST_SKIP() << "no redis-server: " << server.status();
  auto client = RedisClient::Connect((*server)->socket_path());
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_NE("unknown", (*client)->Version());

  for (const size_t count : {1, 32}) {
    constexpr size_t kBytes = 256 * 1024;
    const std::vector<BlockKey> keys = testing::KeyChain(count, count);
    std::vector<std::vector<std::byte>> blocks;
    std::vector<const std::byte*> sources;
    for (const BlockKey& key : keys) {
      blocks.push_back(testing::MakeBlock(1, key, kBytes));
      sources.push_back(blocks.back().data());
    }
    std::vector<std::byte> read(count * kBytes);
    std::vector<std::byte*> destinations;
    for (size_t i = 0; i < count; ++i) destinations.push_back(read.data() + i * kBytes);

    ASSERT_EQ(absl::OkStatus(), (*client)->Put(keys, sources, kBytes));
    ASSERT_EQ(absl::OkStatus(), (*client)->Get(keys, destinations, kBytes));
    for (size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(testing::IsBlock(1, keys[i], {destinations[i], kBytes})) << i;
    }
    EXPECT_EQ(absl::OkStatus(), (*client)->FlushAll());
  }
}

TEST(BenchDaemonTest, ReportsAProgramThatEndsOrIsNotThere) {
  EXPECT_EQ(absl::StatusCode::kUnavailable,
            BenchDaemon::Start({"false"}, SOCK_STREAM).status().code());
  EXPECT_EQ(absl::StatusCode::kUnavailable,
            BenchDaemon::Start({"no-such-program-here"}, SOCK_STREAM).status().code());
}

}  // namespace
}  // namespace kvarve::perf
