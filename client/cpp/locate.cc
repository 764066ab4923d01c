#include "client/cpp/locate.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/requests.h"
#include "storage/base/status_macros.h"

namespace kvarve::client {

absl::Status Locate(const PoolMap& pools, const GrantSet& grants,
                    std::vector<std::shared_ptr<const ChunkMapping>>* chunks,
                    std::vector<const std::byte*>* blocks) {
  uint64_t chunk = 0;
  blocks->clear();
  blocks->reserve(grants.items.size());
  for (const local::GrantItem& item : grants.items) {
    if (chunks->empty() || item.chunk != chunk) {
      std::shared_ptr<const ChunkMapping> mapping = pools.Find(item.chunk);
      if (mapping == nullptr) {
        return absl::NotFoundError(absl::StrCat("chunk ", item.chunk, " is unknown"));
      }
      chunks->push_back(std::move(mapping));
      chunk = item.chunk;
    }
    const ChunkMapping& mapping = *chunks->back();
    if (item.offset > mapping.bytes() || grants.block_bytes > mapping.bytes() - item.offset) {
      return absl::InvalidArgumentError("a grant lies outside its chunk");
    }
    blocks->push_back(mapping.data() + item.offset);
  }
  return absl::OkStatus();
}

absl::Status LocateOrSync(Link::Turn& turn, int64_t timeout_nanos, const GrantSet& grants,
                          std::vector<std::shared_ptr<const ChunkMapping>>* chunks,
                          std::vector<const std::byte*>* blocks) {
  const absl::Status located = Locate(turn.connection().pools(), grants, chunks, blocks);
  if (located.code() != absl::StatusCode::kNotFound) return located;
  KV_RETURN_IF_ERROR(client::SendSync(turn, timeout_nanos));
  chunks->clear();
  return Locate(turn.connection().pools(), grants, chunks, blocks);
}

}  // namespace kvarve::client
