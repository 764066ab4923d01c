// What kernels are told: one POD a kernel, passed by value. Addresses are device addresses. Lengths
// and strides are bytes unless a name says otherwise, and int64: nothing here overflows at 2^31.
// The host checks all of it before a launch (gpu/kernels/plan.h).
//
// A value: THREADS: any.
#ifndef KVARVE_GPU_KERNELS_PARAMS_H_
#define KVARVE_GPU_KERNELS_PARAMS_H_

#include <stdint.h>

namespace kvarve {

// Where the rows of one layer's K, or of its V, lie in pages, and where in a block.
struct MoveTensor {
  uint64_t base;  // row (page 0, head 0, token 0)
  int64_t page_stride;
  int64_t head_stride;
  int64_t token_stride;
  int64_t row_bytes;
  int64_t block_offset;  // of row (head 0, token 0) in the canonical layout
};

// Gather: pages -> blocks. Scatter: blocks -> pages.
struct MoveParams {
  uint64_t tensors;   // MoveTensor[tensor_count]
  uint64_t page_ids;  // int64[block_count][pages a block]; a negative one stands for no page
  uint64_t blocks;    // uint64[block_count]: where each block lies
  uint32_t tensor_count;
  uint32_t heads;
  uint32_t block_count;
  uint32_t page_tokens;
  uint32_t block_tokens;
  uint32_t token_begin;  // of every block, [token_begin, token_end)
  uint32_t token_end;
  uint32_t piece_tokens;  // that are contiguous on both sides: 1, or page_tokens
  uint32_t lanes;         // that share a piece: a power of two up to 32
  uint32_t unused;
};

// Copy-on-write: whole pages to others of the same memory.
struct CopyPagesParams {
  uint64_t tensors;  // MoveTensor[tensor_count]
  uint64_t pairs;    // int64[pair_count][2]: from, to; a pair with a negative id is left out
  uint32_t tensor_count;
  uint32_t heads;
  uint32_t pair_count;
  uint32_t page_tokens;
  uint32_t piece_tokens;
  uint32_t lanes;
};

// An engine's write path: new rows [token][head] to the slots of their tokens.
struct ReshapeParams {
  MoveTensor cache[2];  // K and V of one layer
  uint64_t rows[2];     // row (token 0, head 0)
  int64_t rows_token_stride[2];
  int64_t rows_head_stride[2];
  uint64_t slots;  // int64[token_count]: page × page_tokens + place; negative: not kept
  uint32_t tensor_count;
  uint32_t heads;
  uint32_t token_count;
  uint32_t page_tokens;
  uint32_t lanes;
  uint32_t unused;
};

struct CopyJob {
  uint64_t from;
  uint64_t to;
  uint64_t bytes;
};

// Many copies between any memories; then, if it is wanted, a word that says so.
struct BatchCopyParams {
  uint64_t jobs;  // CopyJob[job_count]
  uint64_t done;  // uint64 that gets `done_value` after the last byte; 0: none
  uint64_t done_value;
  uint64_t counter;  // uint32, 0 before and after; only with `done`
  uint32_t job_count;
  uint32_t unused;
};

enum NumberType : uint32_t { kBf16 = 0, kF16 = 1, kF32 = 2 };

// Gather and scatter that change the representation. A piece of a block is one head of one tensor.
// fp8: e4m3fn codes in the canonical layout at a byte each, a float scale for each piece, a
// power of two.
// int4: for each row dim / 2 bytes, low nibble first, then for each group of elements two bf16,
// scale and zero; element = zero + code × scale.
struct PackParams {
  MoveParams move;  // row_bytes and block_offset are the packed block's
  uint64_t scales;  // fp8: float[block_count][tensor_count][heads]
  uint32_t type;    // NumberType of the pages
  uint32_t element_bytes;
  uint32_t group;  // int4: elements a group
  uint32_t unused;
};

// Rows (page, head, token) of one layer's K or V.
struct PagedRows {
  uint64_t base;  // row (0, 0, 0)
  int64_t page_stride;
  int64_t head_stride;
  int64_t token_stride;
};

// Query rows that an item has at most; with more, it is several items.
inline constexpr uint32_t kAttentionRows = 8;

// The work of one block: some query rows of one KV head of one split of one sequence. Of rows
// (query token, query head of the KV head's group) it has [row, row + rows).
struct AttentionItem {
  int64_t position;  // of the first query token, counted from the sequence's first KV token
  uint64_t pages;    // first of its page ids
  uint64_t q_token;  // first query token of the sequence
  uint64_t out_row;  // of (first query token, query head 0) in `out` and `lse`
  uint32_t begin;    // KV tokens [begin, end); each is attended by one of its rows; may be empty
  uint32_t end;
  uint32_t head;  // KV head
  uint32_t row;
  uint32_t rows;
  uint32_t unused;
};

// A query token attends the KV tokens up to its own position, with a window W the last W of them.
// out: [rows][v_dim], normalised; lse: float[rows], natural, after scale and cap. Rows go by (query
// token, query head). Of nothing they are 0 and -infinity.
struct AttentionParams {
  PagedRows k;
  PagedRows v;        // MLA: k, and a row's first v_dim elements are V
  uint64_t page_ids;  // int32
  uint64_t items;     // AttentionItem[item_count]
  uint64_t q;
  uint64_t out;
  uint64_t lse;
  int64_t q_token_stride;
  int64_t q_head_stride;
  int64_t window;  // 0: none
  uint32_t item_count;
  uint32_t page_tokens;
  uint32_t q_heads;
  uint32_t group;  // query heads a KV head
  uint32_t k_dim;  // multiples of 16
  uint32_t v_dim;
  uint32_t q_type;  // NumberType
  uint32_t out_type;
  float scale;     // of q . k, K's own scale in it
  float v_scale;   // of V
  float soft_cap;  // 0: none
  uint32_t wide;   // 1: all K and V rows lie at multiples of 16 bytes
};

// A part of an attention: float[rows][dim] normalised outputs, and their float[rows] log-sum-exps.
struct MergePart {
  uint64_t out;
  uint64_t lse;
};

// Some rows of parts that have the same rows.
struct MergeItem {
  uint64_t first_part;
  uint64_t out_row;  // of the first row
  uint32_t part_count;
  uint32_t row;   // the first one of the parts'
  uint32_t rows;  // at most kAttentionRows
  uint32_t unused;
};

struct MergeParams {
  uint64_t items;  // MergeItem[item_count]
  uint64_t parts;  // MergePart
  uint64_t base;   // what the parts' addresses count from
  uint64_t out;    // [rows][dim]; it and `lse` may be those of the first part
  uint64_t lse;    // float[rows]
  uint64_t sinks;  // float[q_heads], a logit without a value; 0: none
  uint32_t item_count;
  uint32_t q_heads;  // row r of parts is of query head r % q_heads
  uint32_t dim;
  uint32_t out_type;  // NumberType
};

inline constexpr uint32_t kKeyDiffDimMax = 576;

// Tokens [begin, end) of one KV head of one sequence: a block's work, also without tokens.
struct KeyDiffItem {
  uint64_t pages;        // first of the sequence's page ids
  uint64_t first_sum;    // of the head's chunks
  uint64_t first_score;  // of the head's tokens
  uint32_t head;
  uint32_t begin;
  uint32_t end;
  uint32_t chunk;   // of the head's
  uint32_t chunks;  // that the head has
  uint32_t unused;
};

struct KeyDiffParams {
  PagedRows k;
  uint64_t page_ids;  // int32
  uint64_t items;     // KeyDiffItem[item_count]
  uint64_t sums;      // float[chunks of all heads][dim]: of unit keys
  uint64_t scores;    // float[heads of all sequences][its tokens]: cosines
  uint32_t item_count;
  uint32_t page_tokens;
  uint32_t dim;
  uint32_t element_bytes;  // 1: fp8 (e4m3fn)
  uint32_t type;           // NumberType, of more bytes
  uint32_t unused;
};

// Tokens [begin, end) of all heads of a sequence of `tokens`; not empty.
struct KeyDiffBlock {
  uint64_t first_score;  // of the sequence's first head
  uint32_t tokens;
  uint32_t begin;
  uint32_t end;
  uint32_t unused;
};

struct KeyDiffBlockParams {
  uint64_t blocks;  // KeyDiffBlock[block_count]
  uint64_t scores;
  uint64_t out;  // float[block_count]
  uint32_t block_count;
  uint32_t heads;
};

static_assert(sizeof(MoveTensor) == 48 && sizeof(MoveParams) == 64 &&
              sizeof(CopyPagesParams) == 40);
static_assert(sizeof(ReshapeParams) == 176 && sizeof(BatchCopyParams) == 40);
static_assert(sizeof(PackParams) == 88 && sizeof(CopyJob) == 24);
static_assert(sizeof(AttentionItem) == 56 && sizeof(AttentionParams) == 176);
static_assert(sizeof(KeyDiffItem) == 48 && sizeof(KeyDiffParams) == 88);
static_assert(sizeof(KeyDiffBlock) == 24 && sizeof(KeyDiffBlockParams) == 32);
static_assert(sizeof(MergeItem) == 32 && sizeof(MergePart) == 16 && sizeof(MergeParams) == 64);

}  // namespace kvarve

#endif  // KVARVE_GPU_KERNELS_PARAMS_H_
