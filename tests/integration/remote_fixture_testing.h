// Clients of another host's daemon, for tests: a real gRPC server over a real cache, in this
// process.
#ifndef KVARVE_TESTS_INTEGRATION_REMOTE_FIXTURE_TESTING_H_
#define KVARVE_TESTS_INTEGRATION_REMOTE_FIXTURE_TESTING_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "client/rpc/grpc_plane.h"
#include "services/rpc/rpc_fixture_testing.h"
#include "storage/testing/block_generator.h"

namespace kvarve {

// Longer than any call takes.
inline constexpr int64_t kLong = 60'000'000'000;

class RemoteFixture : public RpcFixture {
 protected:
  RemoteFixture() { client::UseGrpc(); }
  ClientOptions Options() const {
    ClientOptions options;
    options.endpoint = "kvarve://127.0.0.1:" + std::to_string(server_->port());
    options.token_file = options_.auth.token_file;
    options.staging_bytes = 32 << 20;
    options.timeout_nanos = options.put_timeout_nanos = kLong;
    return options;
  }
  std::unique_ptr<Client> Connect() const {
    std::unique_ptr<Client> client = Client::Create(Options()).value();
    EXPECT_EQ(client->WaitReady(kLong), absl::OkStatus());
    return client;
  }
  // Blocks of a generator.
  static std::vector<PutOutcome> Put(Client& client, ClientNamespace ns,
                                     std::span<const BlockKey> keys, uint64_t block_bytes,
                                     std::string* reason = nullptr) {
    std::vector<std::vector<std::byte>> blocks;
    std::vector<const std::byte*> sources;
    for (const BlockKey& key : keys) blocks.push_back(testing::MakeBlock(0, key, block_bytes));
    for (const auto& block : blocks) sources.push_back(block.data());
    PutChain chain;
    chain.keys = keys;
    const absl::StatusOr<std::vector<PutOutcome>> outcomes = client.Put(ns, chain, sources, reason);
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    return outcomes.value_or(std::vector<PutOutcome>());
  }
};

}  // namespace kvarve

#endif  // KVARVE_TESTS_INTEGRATION_REMOTE_FIXTURE_TESTING_H_
