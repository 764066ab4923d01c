// The inner loops of attention on the CPU: one KV head of one split, all query rows of its group.
//
// THREADS: any.  BLOCKS: never.
#ifndef KVARVE_GPU_ATTENTION_CPU_KERNEL_H_
#define KVARVE_GPU_ATTENTION_CPU_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/attention/attention.h"

namespace kvarve {

struct AttentionWork {
  const AttentionPages* pages;
  const int32_t* table;            // of pages, or
  const std::byte* const* blocks;  // of blocks
  uint32_t head;
  int64_t begin, end;  // KV tokens; each is attended by a row
  uint32_t rows;
  const float* q;        // [rows][k_dim], with all scales in it
  const int64_t* first;  // [rows]: a row attends [first, last) of [begin, end)
  const int64_t* last;
  float soft_cap;
  float* out;  // [rows][v_dim]
  float* lse;  // [rows]
};

enum class AttentionPath : uint8_t { kPortable, kAvx2, kAvx512 };
bool AttentionPathSupported(AttentionPath path);
// The best that this processor has; tests name another. REQUIRES: supported.
AttentionPath BestAttentionPath();
void SetAttentionPathForTest(AttentionPath path);

void Attend(const AttentionWork& work);

// KeyDiff's (key_diff.h) two passes over KV tokens [begin, end) of a head; of the work only pages,
// table or blocks, and head count. `anchor` null: adds the unit keys to `out`, [k_dim]. Otherwise
// out[i] is the cosine of key begin + i to `anchor`, which is of length 1, or 0.
void KeyDiffPass(const AttentionWork& work, const float* anchor, float* out);
// What a vector of so many squares is multiplied by to be of length 1; 0 for zeros.
float InverseLength(float squares);

}  // namespace kvarve

#endif  // KVARVE_GPU_ATTENTION_CPU_KERNEL_H_
