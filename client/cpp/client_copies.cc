// Views of copies: blocks over a network, and blocks that the daemon copies into staging.
#include <algorithm>
#include <utility>

#include "client/cpp/client_rep.h"
#include "client/cpp/requests.h"
#include "storage/base/status_macros.h"

namespace kvarve {

using client::OpenNamespaceInfo;

// Blocks over a network, in memory that the View owns.
absl::StatusOr<View> Client::ReadView(ClientNamespace ns, std::span<const BlockKey> keys,
                                      uint64_t request_id) {
  KV_ASSIGN_OR_RETURN(const OpenNamespaceInfo info, rep_->KnownNamespace(ns));
  keys = keys.first(std::min(keys.size(), local::kMaxBlocksPerAcquire));
  // Pages that no block comes to are never touched.
  KV_ASSIGN_OR_RETURN(const std::shared_ptr<client::StagingMemory> memory,
                      client::StagingMemory::Private(keys.size() * info.block_bytes));
  KV_ASSIGN_OR_RETURN(const std::shared_ptr<client::StagingRegion> region,
                      memory->Allocate(keys.size() * info.block_bytes));
  std::vector<std::byte*> destinations(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) destinations[i] = region->data() + i * info.block_bytes;
  KV_ASSIGN_OR_RETURN(const std::vector<uint64_t> checksums,
                      rep_->remote->Read(ns, keys, destinations, request_id, /*verify=*/true));
  View view;
  view.hold_ = region;
  view.blocks_.assign(destinations.begin(),
                      destinations.begin() + static_cast<ptrdiff_t>(checksums.size()));
  view.grants_.block_bytes = info.block_bytes;
  for (const uint64_t checksum : checksums) view.grants_.items.push_back({0, 0, checksum});
  return view;
}

absl::StatusOr<StagedView> Client::ReadStaged(ClientNamespace ns, std::span<const BlockKey> keys,
                                              uint64_t request_id) {
  StagedView staged;
  if (keys.empty()) return staged;
  client::StagedBlocks read;
  if (!is_remote()) {
    KV_ASSIGN_OR_RETURN(read, client::ReadIntoStaging(*rep_->link, ns, keys, request_id));
  } else {
    KV_ASSIGN_OR_RETURN(read.info, rep_->KnownNamespace(ns));
    if (rep_->staging == nullptr)
      return absl::ResourceExhaustedError("this client asked for no staging memory");
    read.asked = std::min(keys.size(), local::kMaxBlocksPerAcquire);
    KV_ASSIGN_OR_RETURN(read.region,
                        rep_->staging->AllocateBlocks(read.info.block_bytes, &read.asked));
    std::vector<std::byte*> to(read.asked);
    for (size_t i = 0; i < to.size(); ++i) to[i] = read.region->data() + i * read.info.block_bytes;
    KV_ASSIGN_OR_RETURN(read.checksums, rep_->remote->Read(ns, keys.first(read.asked), to,
                                                           request_id, /*verify=*/true));
  }
  View& view = staged.view;
  view.grants_.block_bytes = read.info.block_bytes;
  for (size_t i = 0; i < read.checksums.size(); ++i) {
    view.blocks_.push_back(read.region->data() + i * read.info.block_bytes);
    view.grants_.items.push_back({0, 0, read.checksums[i]});
  }
  staged.is_cut = read.checksums.size() == read.asked && read.asked < keys.size();
  view.hold_ = std::move(read.region);
  return staged;
}

}  // namespace kvarve
