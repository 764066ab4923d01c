// Where granted blocks lie in this process.
//
// THREADS: Locate any, LocateOrSync whoever has the turn.  BLOCKS: LocateOrSync, up to the
// time-out.
#ifndef KVARVE_CLIENT_CPP_LOCATE_H_
#define KVARVE_CLIENT_CPP_LOCATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "client/cpp/link.h"
#include "client/cpp/pool_map.h"

namespace kvarve::client {

// Appends the chunks that hold the blocks of `grants`, and sets `blocks` to their bytes. NotFound:
// a chunk is unknown. InvalidArgument: a block lies outside its chunk.
absl::Status Locate(const PoolMap& pools, const GrantSet& grants,
                    std::vector<std::shared_ptr<const ChunkMapping>>* chunks,
                    std::vector<const std::byte*>* blocks);

// Once more after all chunks have been announced, if one was unknown.
absl::Status LocateOrSync(Link::Turn& turn, int64_t timeout_nanos, const GrantSet& grants,
                          std::vector<std::shared_ptr<const ChunkMapping>>* chunks,
                          std::vector<const std::byte*>* blocks);

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_LOCATE_H_
