#include "tests/perf/bench_client.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "storage/base/status_macros.h"

namespace kvarve::perf {
namespace {

constexpr int64_t kSeconds = 1'000'000'000;

// The value, or the end of the process with its status.
template <typename T>
T Must(absl::StatusOr<T> result) {
  if (!result.ok()) std::fprintf(stderr, "kvarve_bench: %s\n", result.status().ToString().c_str());
  KV_CHECK(result.ok());
  return *std::move(result);
}

void MustStore(const std::vector<PutOutcome>& outcomes, size_t blocks) {
  KV_CHECK(outcomes.size() == blocks);
  for (PutOutcome outcome : outcomes) KV_CHECK(outcome == PutOutcome::kStored);
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchClient>> BenchClient::Connect(const BenchDaemon& daemon) {
  return Connect(daemon.endpoint(), "");
}

absl::StatusOr<std::unique_ptr<BenchClient>> BenchClient::Connect(const std::string& endpoint,
                                                                  const std::string& token_file,
                                                                  const ClientTls& tls) {
  ClientOptions options;
  options.endpoint = endpoint;
  options.token_file = token_file;
  options.tls = tls;
  options.client_name = "kvarve_bench";
  options.staging_bytes = kStagingBytes;
  options.timeout_nanos = 10 * kSeconds;
  options.put_timeout_nanos = 30 * kSeconds;
  std::unique_ptr<BenchClient> bench(new BenchClient());
  KV_ASSIGN_OR_RETURN(bench->client_, Client::Create(options));
  KV_RETURN_IF_ERROR(bench->client_->WaitReady(10 * kSeconds));
  for (Staging& piece : bench->StageAll(kStagingBytes)) {
    std::memset(piece.data(), 0x5a, piece.size());
  }
  return bench;
}

ClientNamespace BenchClient::Open(uint64_t block_bytes, const char* name) {
  NamespaceDescriptor descriptor;
  descriptor.model = name;
  descriptor.model_digest = name;
  descriptor.element_type = ElementType::kOpaque;
  descriptor.layer_count = descriptor.layer_total = 1;
  descriptor.kv_head_count = descriptor.kv_head_total = 1;
  descriptor.block_tokens = 256;
  descriptor.block_bytes = block_bytes;
  descriptor.hash_version = "bench";
  return Must(client_->OpenNamespace(descriptor));
}

std::vector<Staging> BenchClient::StageAll(size_t bytes) {
  std::vector<Staging> pieces;
  for (size_t at = 0; at + bytes <= kStagingBytes; at += bytes) {
    pieces.push_back(Must(client_->Stage(bytes)));
  }
  return pieces;
}

void BenchClient::PutStaged(ClientNamespace ns, std::span<const BlockKey> keys, Staging staging) {
  PutChain chain;
  chain.keys = keys;
  MustStore(Must(client_->PutStaged(ns, chain, std::move(staging))), keys.size());
}

void BenchClient::Fill(ClientNamespace ns, std::span<const BlockKey> keys, size_t keys_per_put) {
  const uint64_t block_bytes = client_->block_bytes(ns);
  PutChain chain;
  while (!keys.empty()) {
    chain.keys = keys.first(std::min(keys.size(), keys_per_put));
    Staging staging = Must(client_->Stage(chain.keys.size() * block_bytes));
    MustStore(Must(client_->PutStaged(ns, chain, std::move(staging))), chain.keys.size());
    chain.parent = chain.keys.back();
    chain.first_depth += static_cast<uint32_t>(chain.keys.size());
    keys = keys.subspan(chain.keys.size());
  }
}

void BenchClient::Invalidate(ClientNamespace ns) { Must(client_->Invalidate(ns)); }

void BenchClient::Settle(ClientNamespace ns) {
  const BlockKey none{};
  KV_CHECK(Must(client_->Lookup(ns, {&none, 1})).hit_blocks == 0);
}

}  // namespace kvarve::perf
