#include "tests/perf/least_grant.h"

#include <cstring>
#include <utility>
#include <vector>

#include "client/local/messages.h"
#include "storage/base/status_macros.h"
#include "storage/index/index.h"
#include "tests/perf/bench_table.h"

namespace kvarve::perf {
namespace {

constexpr size_t kRequestHead = sizeof(local::Header) + sizeof(local::KeysBody);
constexpr size_t kReplyHead = sizeof(local::Header) + sizeof(local::GrantBody);

}  // namespace

size_t GrantRequestBytes(size_t blocks) { return kRequestHead + blocks * sizeof(BlockKey); }
size_t GrantReplyBytes(size_t blocks) { return kReplyHead + blocks * sizeof(local::GrantItem); }

std::unique_ptr<BarePing> MakeLeastGrant(uint64_t entries, size_t blocks,
                                         const std::function<BlockKey(uint64_t)>& key) {
  auto index = std::make_shared<Index>(/*seed=*/1, entries);
  for (uint64_t n = 0; n < entries; ++n) {
    KV_CHECK(index->Insert(0, key(n), nullptr, 0, /*slot=*/n, /*checksum=*/n).ok());
  }
  const auto grant = [index, keys = std::vector<BlockKey>(blocks),
                      ids = std::vector<EntryId>(blocks)](std::span<const char> request,
                                                          std::span<char> reply) mutable {
    std::memcpy(keys.data(), request.data() + kRequestHead, keys.size() * sizeof(BlockKey));
    KV_CHECK(index->FindPrefix(0, keys, ids.data()) == keys.size());
    char* at = reply.data() + kReplyHead;
    for (const EntryId id : ids) {
      const IndexEntry& entry = index->Get(id);
      const local::GrantItem item{1, entry.slot, entry.checksum};
      std::memcpy(at, &item, sizeof(item));
      at += sizeof(item);
    }
  };
  return std::make_unique<BarePing>(BarePing::Options{.request_bytes = GrantRequestBytes(blocks),
                                                      .reply_bytes = GrantReplyBytes(blocks),
                                                      .as_the_plane_asks = true,
                                                      .work = grant});
}

double LeastGrantMicros(BarePing* ping, std::span<const BlockKey> keys) {
  const double start = NowMicros();
  const std::span<char> request = ping->request();
  KV_CHECK(request.size() == GrantRequestBytes(keys.size()));
  std::memcpy(request.data() + kRequestHead, keys.data(), keys.size_bytes());
  ping->RoundTripMicros();
  return NowMicros() - start;
}

}  // namespace kvarve::perf
