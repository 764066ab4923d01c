// What a batch asks of attention, on any device: whether it is sound, and which KV tokens are
// attended.
//
// THREADS: any.  BLOCKS: never.
#ifndef KVARVE_GPU_ATTENTION_ATTENTION_REQUEST_H_
#define KVARVE_GPU_ATTENTION_ATTENTION_REQUEST_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "gpu/attention/attention.h"

namespace kvarve {

// As PagedAttention::Create says; of the pages alone, or of all of it.
absl::Status CheckAttentionPages(const AttentionPages& pages);
absl::Status CheckAttention(const AttentionPages& pages, const AttentionOptions& options,
                            std::span<const AttentionSequence> sequences);

// KV tokens [begin, end), counted from the sequence's first.
struct KvRange {
  int64_t begin;
  int64_t end;
  bool operator==(const KvRange&) const = default;
};
// What a query token attends. Later tokens' ranges neither begin nor end earlier.
KvRange Attended(const AttentionOptions& options, const AttentionSequence& sequence,
                 uint32_t token);
// What one or more of the query tokens [first, first + count) attend.
KvRange AttendedByAny(const AttentionOptions& options, const AttentionSequence& sequence,
                      uint32_t first, uint32_t count);
// Whatever is attended of a sequence, cut at multiples of the options' split; none where that is
// nothing.
std::vector<KvRange> SplitsOf(const AttentionOptions& options, const AttentionSequence& sequence);

}  // namespace kvarve

#endif  // KVARVE_GPU_ATTENTION_ATTENTION_REQUEST_H_
