#include "client/cpp/engine/block_ports.h"

#include <algorithm>
#include <utility>

#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

class ClientSource final : public BlockSource {
 public:
  ClientSource(Client* client, std::shared_ptr<DeviceMemoryObserver> memory)
      : client_(client), memory_(std::move(memory)) {}

  absl::StatusOr<OpenBlocks> Open(ClientNamespace ns, std::span<const BlockKey> keys,
                                  const std::optional<GrantSet>& grants,
                                  uint64_t request_id) override {
    const bool in_place =
        memory_ == nullptr || (memory_->path() != HostPath::kStaging && !client_->is_remote());
    if (in_place) {
      KV_ASSIGN_OR_RETURN(OpenBlocks open, OpenInPlace(ns, keys, grants, request_id));
      if (memory_ == nullptr || CanReach(open)) return open;
    }
    KV_ASSIGN_OR_RETURN(StagedView staged, client_->ReadStaged(ns, keys, request_id));
    OpenBlocks open = Opened(std::move(staged.view));
    open.is_cut = staged.is_cut;
    open.path = HostPath::kStaging;
    return open;
  }

  bool Verify(ClientNamespace ns, const BlockKey& key, const std::byte* block,
              uint64_t checksum) override {
    if (client_->is_remote()) return true;  // as it came
    return client_->Verify(ns, key, block, checksum);
  }

 private:
  absl::StatusOr<OpenBlocks> OpenInPlace(ClientNamespace ns, std::span<const BlockKey> keys,
                                         const std::optional<GrantSet>& grants,
                                         uint64_t request_id) {
    // What another process leased of another host's blocks is kept there, and read from here.
    KV_ASSIGN_OR_RETURN(View view, grants && !client_->is_remote()
                                       ? client_->Map(*grants)
                                       : client_->Acquire(ns, keys, request_id));
    OpenBlocks open = Opened(std::move(view));
    if (memory_ != nullptr) open.path = memory_->path();
    return open;
  }

  static OpenBlocks Opened(View view) {
    OpenBlocks open;
    open.block_bytes = view.grants().block_bytes;
    for (size_t i = 0; i < view.size(); ++i) {
      open.blocks.push_back(view.block(i));
      open.checksums.push_back(view.checksum(i));
    }
    open.hold = std::make_shared<View>(std::move(view));
    return open;
  }

  bool CanReach(const OpenBlocks& open) const {
    return std::all_of(open.blocks.begin(), open.blocks.end(), [&](const std::byte* block) {
      return memory_->registry().AddressOf(block, open.block_bytes).has_value();
    });
  }

  Client* const client_;
  const std::shared_ptr<DeviceMemoryObserver> memory_;
};

class ClientSink final : public BlockSink {
 public:
  explicit ClientSink(Client* client) : client_(client) {}

  absl::StatusOr<StagedBytes> Stage(size_t bytes) override {
    KV_ASSIGN_OR_RETURN(Staging staging, client_->Stage(bytes));
    auto held = std::make_shared<Staging>(std::move(staging));
    return StagedBytes{held->data(), held};
  }

  absl::StatusOr<std::vector<PutOutcome>> Put(ClientNamespace ns, const PutChain& chain,
                                              StagedBytes staged) override {
    return client_->PutStaged(ns, chain, std::move(*static_cast<Staging*>(staged.hold.get())));
  }

 private:
  Client* const client_;
};

}  // namespace

std::unique_ptr<BlockSource> SourceOf(Client* client,
                                      std::shared_ptr<DeviceMemoryObserver> memory) {
  return std::make_unique<ClientSource>(client, std::move(memory));
}
std::unique_ptr<BlockSink> SinkOf(Client* client) { return std::make_unique<ClientSink>(client); }

}  // namespace kvarve
