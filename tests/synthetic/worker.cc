#include "tests/synthetic/worker.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "storage/base/clock.h"
#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"
#include "storage/block/prefix_hash.h"
#include "tests/synthetic/model.h"

namespace kvarve::synthetic {
namespace {

constexpr int64_t kReadyNanos = 5'000'000'000;
constexpr size_t kMaxPacketBytes = 256 * 1024;

class Worker {
 public:
  Worker(Client* client, ClientNamespace ns, uint64_t block_bytes)
      : client_(client), ns_(ns), block_bytes_(block_bytes) {}

  Outcome Prefill(const Job& job, std::span<const local::GrantItem> items) {
    const std::vector<uint32_t> tokens = PromptTokens(job.seed, job.tokens);
    const size_t blocks = tokens.size() / kBlockTokens;
    pages_.resize(blocks * block_bytes_);
    PrefixHasher hasher(kBlockTokens, {});
    hasher.Extend(tokens);
    keys_ = hasher.keys();

    Outcome outcome;
    const int64_t start = SystemClock::Get()->NowNanos();
    outcome.loaded_blocks = Load(job, items);
    const int64_t loaded = SystemClock::Get()->NowNanos();
    State state;
    if (outcome.loaded_blocks > 0) state.Resume(Page(outcome.loaded_blocks - 1));
    for (size_t i = outcome.loaded_blocks; i < blocks; ++i) {
      state.Prefill(std::span(tokens).subspan(i * kBlockTokens, kBlockTokens), Page(i));
    }
    outcome.load_us = (loaded - start) / 1000;
    outcome.compute_us = (SystemClock::Get()->NowNanos() - loaded) / 1000;
    return outcome;
  }

  uint64_t PagesCrc() const { return Crc64(0, pages_.data(), pages_.size()); }
  // One prompt's KV must not stand in for the next one's.
  void Forget() { std::fill(pages_.begin(), pages_.end(), std::byte{0xee}); }

  // Saves the pages of the last prompt from block `first` on; how many are in the cache now.
  uint64_t Save(size_t first, uint64_t request_id) {
    if (first >= keys_.size()) return 0;
    PutChain chain;
    if (first > 0) chain.parent = keys_[first - 1];
    chain.first_depth = static_cast<uint32_t>(first);
    chain.keys = std::span(keys_).subspan(first);
    chain.request_id = request_id;
    std::vector<const std::byte*> sources;
    for (size_t i = first; i < keys_.size(); ++i) sources.push_back(Page(i).data());
    const auto outcomes = client_->Put(ns_, chain, sources);
    if (!outcomes.ok()) return 0;
    uint64_t stored = 0;
    for (const PutOutcome outcome : *outcomes) stored += outcome <= PutOutcome::kExists;
    return stored;
  }

 private:
  std::span<std::byte> Page(size_t i) {
    return std::span(pages_).subspan(i * block_bytes_, block_bytes_);
  }

  size_t Load(const Job& job, std::span<const local::GrantItem> items) {
    if (items.empty()) return 0;
    GrantSet grants;
    grants.incarnation = job.incarnation;
    grants.lease = job.lease;
    grants.block_bytes = job.block_bytes;
    grants.items.assign(items.begin(), items.end());
    const absl::StatusOr<View> view = client_->Map(grants);
    if (!view.ok()) return 0;
    for (size_t i = 0; i < view->size(); ++i)
      StreamCopy(Page(i).data(), view->block(i), block_bytes_);
    return view->size();
  }

  Client* const client_;
  const ClientNamespace ns_;
  const uint64_t block_bytes_;
  std::vector<std::byte> pages_;
  std::vector<BlockKey> keys_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& endpoint,
                                                const std::string& engine_id, local::Role role) {
  ClientOptions options;
  options.endpoint = endpoint;
  options.engine_id = engine_id;
  options.role = role;
  options.client_name = "synthetic-engine";
  if (role == local::Role::kScheduler) options.staging_bytes = 0;
  return Client::Create(options);
}

absl::Status Serve(const std::string& endpoint, const std::string& engine_id, int socket) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                      Connect(endpoint, engine_id, local::Role::kWorker));
  const NamespaceDescriptor descriptor = Descriptor();
  KV_ASSIGN_OR_RETURN(const ClientNamespace ns, client->OpenNamespace(descriptor));
  KV_RETURN_IF_ERROR(client->WaitReady(kReadyNanos));
  Worker worker(client.get(), ns, descriptor.block_bytes);
  std::vector<char> packet(kMaxPacketBytes);
  while (true) {
    const ssize_t size = recv(socket, packet.data(), packet.size(), 0);
    if (size <= 0) return absl::OkStatus();
    Job job;
    KV_CHECK(static_cast<size_t>(size) >= sizeof(job));
    std::memcpy(&job, packet.data(), sizeof(job));
    KV_CHECK(sizeof(job) + job.grant_items * sizeof(local::GrantItem) == static_cast<size_t>(size));
    std::vector<local::GrantItem> items(job.grant_items);
    std::memcpy(items.data(), packet.data() + sizeof(job), size - sizeof(job));
    Outcome outcome = worker.Prefill(job, items);
    if (send(socket, &outcome, sizeof(outcome), MSG_NOSIGNAL) < 0) return absl::OkStatus();
    outcome.saved_blocks = worker.Save(outcome.loaded_blocks, job.seed);
    outcome.pages_crc = worker.PagesCrc();
    worker.Forget();
    if (send(socket, &outcome, sizeof(outcome), MSG_NOSIGNAL) < 0) return absl::OkStatus();
  }
}

}  // namespace kvarve::synthetic
