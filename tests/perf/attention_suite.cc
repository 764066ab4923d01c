// Suite "attention": decode on the CPU, one new token over a long context, beside a loop that only
// reads the same rows of the same pages in the same order with the same threads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "gpu/attention/attention.h"
#include "storage/base/prefetch.h"
#include "storage/base/status_macros.h"
#include "tests/perf/bench_table.h"
#include "tests/perf/huge_memory.h"

namespace kvarve::perf {
namespace {

// Llama-3.1-8B, one layer in bf16: 4 KiB a token.
constexpr uint32_t kQueryHeads = 32, kKvHeads = 8, kDim = 128;
constexpr int64_t kRow = kDim * 2;
constexpr uint32_t kSplitTokens = 512;
constexpr int kAttentionRounds = 9;
constexpr int64_t kTokensAhead = 16;  // that the bare loop asks for: rows of NHD lie far apart

class Decode {
 public:
  Decode(int64_t tokens, uint32_t page_tokens, bool is_nhd)
      : tokens_(tokens), memory_(2 * tokens * kKvHeads * kRow, 0) {
    pages_.pages = tokens / page_tokens, pages_.page_tokens = page_tokens;
    pages_.kv_heads = kKvHeads, pages_.k_dim = pages_.v_dim = kDim;
    PagedTensor tensor;
    tensor.page_stride = kKvHeads * page_tokens * kRow;
    tensor.token_stride = is_nhd ? kKvHeads * kRow : kRow;
    tensor.head_stride = is_nhd ? kRow : page_tokens * kRow;
    tensor.bytes = tokens * kKvHeads * kRow;
    pages_.k = pages_.v = tensor;
    pages_.k.base = memory_.data(), pages_.v.base = memory_.data() + tensor.bytes;
    std::mt19937_64 random(1);
    for (size_t i = 0; i < memory_.size(); i += 8) {  // four bf16 of 0.5 to 1, of both signs
      const uint64_t codes = 0x3f003f003f003f00 | (random() & 0x807f807f807f807f);
      std::memcpy(memory_.data() + i, &codes, 8);
    }
    table_.resize(pages_.pages);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), random);
    sequence_ = {.table = table_, .kv_tokens = tokens, .q_position = tokens - 1};
    q_.assign(kQueryHeads * kDim, 0.25f);
    out_.resize(q_.size()), lse_.resize(kQueryHeads);
  }

  double GigabytesASecond(bool bare) {
    const double start = NowMicros();
    const int repeats = static_cast<int>(std::max<int64_t>(1, 16384 / tokens_));
    for (int i = 0; i < repeats; ++i) bare ? Read() : Compute();
    const double bytes = 2.0 * static_cast<double>(tokens_) * kKvHeads * kRow * repeats;
    return bytes / (NowMicros() - start) / 1000;
  }

 private:
  void Compute() {
    absl::StatusOr<PagedAttention> attention = PagedAttention::Create(
        pages_,
        {.q_heads = kQueryHeads, .scale = 1 / std::sqrt(128.0f), .split_tokens = kSplitTokens},
        std::span(&sequence_, 1));
    KV_CHECK(attention.ok());
    InParallel(attention->items(), [&](size_t item) { attention->Run(item, q_.data()); });
    attention->Finish({}, out_.data(), lse_.data());
    KV_CHECK(std::isfinite(lse_[0]));
  }

  void Read() {
    const size_t splits = (tokens_ - 1) / kSplitTokens + 1;
    std::atomic<uint64_t> all = 0;
    InParallel(splits * kKvHeads, [&](size_t item) {
      const auto head = static_cast<int64_t>(item % kKvHeads);
      const auto begin = static_cast<int64_t>(item / kKvHeads * kSplitTokens);
      Vector sum{};
      const int64_t end = std::min<int64_t>(begin + kSplitTokens, tokens_);
      const auto row = [&](const PagedTensor& tensor, int64_t token) {
        return tensor.Row(table_[token / pages_.page_tokens], head, token % pages_.page_tokens);
      };
      for (int64_t token = begin; token < end; ++token) {
        if (const int64_t ahead = token + kTokensAhead; ahead < end) {
          for (int64_t at = 0; at < kRow; at += 64) {
            PrefetchForRead(row(pages_.k, ahead) + at);
            PrefetchForRead(row(pages_.v, ahead) + at);
          }
        }
        Add(row(pages_.k, token), &sum);
        Add(row(pages_.v, token), &sum);
      }
      all += sum[0] ^ sum[1];
    });
    KV_CHECK(all != 1);  // is never known before
  }

  typedef uint64_t Vector __attribute__((vector_size(16)));
  static void Add(const std::byte* row, Vector* sum) {
    Vector sums[4] = {};
    for (int64_t at = 0; at < kRow; at += 64) {
      for (int i = 0; i < 4; ++i) {
        Vector part;
        std::memcpy(&part, row + at + 16 * i, 16);
        sums[i] += part;
      }
    }
    *sum += sums[0] + sums[1] + sums[2] + sums[3];
  }

  template <typename Work>
  static void InParallel(size_t items, Work work) {
    std::atomic<size_t> next = 0;
    const auto run = [&] {
      for (size_t item = next++; item < items; item = next++) work(item);
    };
    std::vector<std::jthread> others;
    for (size_t i = 1; i < AllowedCpus().size(); ++i) others.emplace_back(run);
    run();
  }

  int64_t tokens_;
  HugeMemory memory_;
  AttentionPages pages_;
  std::vector<int32_t> table_;
  AttentionSequence sequence_;
  std::vector<float> q_, out_, lse_;
};

void Row(BenchTable* table, const std::string& what, int64_t tokens, uint32_t page_tokens,
         bool is_nhd, std::optional<double> gate) {
  const std::string name =
      absl::StrFormat("attention/decode_%s/%s/page_%d", what, is_nhd ? "nhd" : "hnd", page_tokens);
  if (!table->Wants(name)) return;
  Decode decode(tokens, page_tokens, is_nhd);
  table->Compare({.name = name,
                  .unit = "GB/s",
                  .better = Better::kHigher,
                  .gate = gate,
                  .mine = [&] { return decode.GigabytesASecond(/*bare=*/false); },
                  .bare = [&] { return decode.GigabytesASecond(/*bare=*/true); },
                  .rounds = kAttentionRounds});
}

void RunAttentionSuite(BenchTable* table) {
  for (const uint32_t page_tokens : {16u, 128u}) {
    for (const bool is_nhd : {false, true}) {
      Row(table, "32k", 32768, page_tokens, is_nhd, 0.4);
    }
  }
  Row(table, "in_cache", 256, 16, false, {});  // 1 MiB
}

KVARVE_BENCH_SUITE(attention, "decode over paged KV on the CPU, beside a loop that reads the pages",
                   RunAttentionSuite);

}  // namespace
}  // namespace kvarve::perf
