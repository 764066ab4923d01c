#include "tests/perf/least_grant.h"

#include <bit>
#include <cstring>
#include <utility>

#include "client/local/messages.h"
#include "storage/base/prefetch.h"
#include "storage/base/status_macros.h"
#include "tests/perf/bench_table.h"
#include "tests/perf/huge_memory.h"

namespace kvarve::perf {
namespace {

constexpr size_t kRequestHead = sizeof(local::Header) + sizeof(local::KeysBody);
constexpr size_t kReplyHead = sizeof(local::Header) + sizeof(local::GrantBody);

struct alignas(64) Cell {
  BlockKey key;
  uint64_t slot;
  uint64_t checksum;
  uint64_t used;
};

// Open addressing by the key's own first word, half empty, in huge pages where there are any: one
// cache line a key.
class Cells {
 public:
  explicit Cells(uint64_t entries)
      : mask_(std::bit_ceil(2 * entries) - 1), memory_((mask_ + 1) * sizeof(Cell), 0) {}
  void Insert(const BlockKey& key, uint64_t n) {
    Cell* cell = At(HomeOf(key.bytes.data()));
    while (cell->used != 0) cell = At(static_cast<uint64_t>(cell - At(0)) + 1);
    *cell = {key, n, n, 1};
  }
  const Cell* Home(const void* key) const { return At(HomeOf(key)); }
  const Cell* Find(const void* key) const {
    for (uint64_t at = HomeOf(key);; ++at) {
      const Cell* const cell = At(at);
      KV_CHECK(cell->used != 0);
      if (std::memcmp(cell->key.bytes.data(), key, sizeof(BlockKey)) == 0) return cell;
    }
  }

 private:
  static uint64_t HomeOf(const void* key) {
    uint64_t word;
    std::memcpy(&word, key, sizeof(word));
    return word * 0x9E3779B97F4A7C15ull >> 20;
  }
  Cell* At(uint64_t n) const { return reinterpret_cast<Cell*>(memory_.data()) + (n & mask_); }

  const uint64_t mask_;
  HugeMemory memory_;
};

}  // namespace

size_t GrantRequestBytes(size_t blocks) { return kRequestHead + blocks * sizeof(BlockKey); }
size_t GrantReplyBytes(size_t blocks) { return kReplyHead + blocks * sizeof(local::GrantItem); }

std::unique_ptr<BarePing> MakeLeastGrant(uint64_t entries, size_t blocks,
                                         const std::function<BlockKey(uint64_t)>& key) {
  auto cells = std::make_shared<Cells>(entries);
  for (uint64_t n = 0; n < entries; ++n) cells->Insert(key(n), n);
  const auto grant = [cells, blocks](std::span<const char> request, std::span<char> reply) {
    const char* const keys = request.data() + kRequestHead;
    for (size_t i = 0; i < blocks; ++i) PrefetchForRead(cells->Home(keys + i * sizeof(BlockKey)));
    char* at = reply.data() + kReplyHead;
    for (size_t i = 0; i < blocks; ++i, at += sizeof(local::GrantItem)) {
      const Cell* const cell = cells->Find(keys + i * sizeof(BlockKey));
      const local::GrantItem item{1, cell->slot, cell->checksum};
      std::memcpy(at, &item, sizeof(item));
    }
  };
  return std::make_unique<BarePing>(BarePing::Options{.request_bytes = GrantRequestBytes(blocks),
                                                      .reply_bytes = GrantReplyBytes(blocks),
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
