// Rows from here to there: pages to blocks, blocks to pages, pages to pages, new rows to slots. A
// group of `lanes` neighbouring threads moves a piece (one row, or rows that are contiguous on both
// sides); groups take pieces in turn over the whole grid. One entry a width of access; the host
// chooses the widest that all addresses, strides and sizes allow.
#include "gpu/kernels/params.h"
#include "gpu/kernels/portable.cuh"

namespace kvarve {
namespace {

// The pieces that this thread's group takes: first, first + step, …
struct Pieces {
  uint32_t first, step, lane, lanes;
  KV_DEVICE explicit Pieces(uint32_t its_lanes) : lanes(its_lanes) {
    const uint32_t group = threadIdx.x / lanes, groups = blockDim.x / lanes;
    first = blockIdx.x * groups + group;
    step = gridDim.x * groups;
    lane = threadIdx.x % lanes;
  }
};

template <int width>
KV_DEVICE void MovePiece(uint64_t to, uint64_t from, int64_t bytes, const Pieces& pieces) {
  using W = typename Word<width>::Type;
  const W* const source = At<const W>(from);
  W* const target = At<W>(to);
  const int64_t words = bytes / width, step = pieces.lanes;
  int64_t i = pieces.lane;
  for (; i + 3 * step < words; i += 4 * step) {  // four loads under way at a time
    const W a = source[i], b = source[i + step], c = source[i + 2 * step], d = source[i + 3 * step];
    target[i] = a;
    target[i + step] = b;
    target[i + 2 * step] = c;
    target[i + 3 * step] = d;
  }
  for (; i < words; i += step) target[i] = source[i];
}

KV_DEVICE int64_t RowOf(const MoveTensor& t, int64_t page, uint32_t head, uint32_t token) {
  return page * t.page_stride + int64_t{head} * t.head_stride + int64_t{token} * t.token_stride;
}

template <int width, bool gather>
KV_DEVICE void MoveBlocks(const MoveParams& p) {
  const Pieces pieces(p.lanes);
  // Pieces of a head: from the page that token_begin lies in on; the first and last may be cut.
  const uint32_t first_piece = p.token_begin / p.piece_tokens;
  const uint32_t per_head = (p.token_end - 1) / p.piece_tokens - first_piece + 1;
  const uint32_t count = p.block_count * p.tensor_count * p.heads * per_head;
  const uint32_t pages_per_block = p.block_tokens / p.page_tokens;
  for (uint32_t piece = pieces.first; piece < count; piece += pieces.step) {
    uint32_t rest = piece;
    const uint32_t place = first_piece + rest % per_head;
    rest /= per_head;
    const uint32_t head = rest % p.heads;
    rest /= p.heads;
    const MoveTensor& t = At<const MoveTensor>(p.tensors)[rest % p.tensor_count];
    const uint32_t block = rest / p.tensor_count;
    const uint32_t piece_begin = place * p.piece_tokens, piece_end = piece_begin + p.piece_tokens;
    const uint32_t begin = piece_begin < p.token_begin ? p.token_begin : piece_begin;
    const uint32_t end = piece_end > p.token_end ? p.token_end : piece_end;
    const int64_t page =
        At<const int64_t>(p.page_ids)[int64_t{block} * pages_per_block + begin / p.page_tokens];
    if (page < 0) continue;
    const uint64_t in_pages = t.base + RowOf(t, page, head, begin % p.page_tokens);
    const uint64_t in_block = At<const uint64_t>(p.blocks)[block] + t.block_offset +
                              (int64_t{head} * p.block_tokens + begin) * t.row_bytes;
    const int64_t bytes = int64_t{end - begin} * t.row_bytes;
    if constexpr (gather) {
      MovePiece<width>(in_block, in_pages, bytes, pieces);
    } else {
      MovePiece<width>(in_pages, in_block, bytes, pieces);
    }
  }
}

template <int width>
KV_DEVICE void CopyPages(const CopyPagesParams& p) {
  const Pieces pieces(p.lanes);
  const uint32_t per_head = p.page_tokens / p.piece_tokens;
  const uint32_t count = p.pair_count * p.tensor_count * p.heads * per_head;
  for (uint32_t piece = pieces.first; piece < count; piece += pieces.step) {
    uint32_t rest = piece;
    const uint32_t token = rest % per_head * p.piece_tokens;
    rest /= per_head;
    const uint32_t head = rest % p.heads;
    rest /= p.heads;
    const MoveTensor& t = At<const MoveTensor>(p.tensors)[rest % p.tensor_count];
    const int64_t* const pair = At<const int64_t>(p.pairs) + int64_t{rest / p.tensor_count} * 2;
    const int64_t from = pair[0], to = pair[1];
    if (from < 0 || to < 0) continue;
    MovePiece<width>(t.base + RowOf(t, to, head, token), t.base + RowOf(t, from, head, token),
                     p.piece_tokens * t.row_bytes, pieces);
  }
}

template <int width>
KV_DEVICE void ReshapeAndCache(const ReshapeParams& p) {
  const Pieces pieces(p.lanes);
  const uint32_t count = p.token_count * p.tensor_count * p.heads;
  for (uint32_t piece = pieces.first; piece < count; piece += pieces.step) {
    uint32_t rest = piece;
    const uint32_t head = rest % p.heads;
    rest /= p.heads;
    const uint32_t which = rest % p.tensor_count, token = rest / p.tensor_count;
    const int64_t slot = At<const int64_t>(p.slots)[token];
    if (slot < 0) continue;
    const MoveTensor& t = p.cache[which];
    const uint64_t from = p.rows[which] + int64_t{token} * p.rows_token_stride[which] +
                          int64_t{head} * p.rows_head_stride[which];
    const uint32_t place = static_cast<uint32_t>(slot % p.page_tokens);
    MovePiece<width>(t.base + RowOf(t, slot / p.page_tokens, head, place), from, t.row_bytes,
                     pieces);
  }
}

// A job is a piece of 32 lanes; what is behind its last whole word goes byte by byte.
template <int width>
KV_DEVICE void BatchCopy(const BatchCopyParams& p) {
  const Pieces pieces(32);
  for (uint32_t i = pieces.first; i < p.job_count; i += pieces.step) {
    const CopyJob job = At<const CopyJob>(p.jobs)[i];
    const uint64_t whole = job.bytes / width * width;
    MovePiece<width>(job.to, job.from, static_cast<int64_t>(whole), pieces);
    const uint64_t tail = whole + pieces.lane;  // fewer bytes than lanes
    if (tail < job.bytes) *At<uint8_t>(job.to + tail) = *At<const uint8_t>(job.from + tail);
  }
  if (p.done == 0) return;
  __threadfence_system();  // this thread's copies, before its block is counted
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint32_t* const counter = At<uint32_t>(p.counter);
  if (atomicAdd(counter, 1) != gridDim.x - 1) return;
  *counter = 0;  // the last block
  __threadfence_system();
  StoreReleaseSystem(At<uint64_t>(p.done), p.done_value);
}

}  // namespace

#define KV_MOVERS(width)                                                                \
  KV_KERNEL(kv_gather_##width, MoveParams) { MoveBlocks<width, true>(p); }              \
  KV_KERNEL(kv_scatter_##width, MoveParams) { MoveBlocks<width, false>(p); }            \
  KV_KERNEL(kv_copy_pages_##width, CopyPagesParams) { CopyPages<width>(p); }            \
  KV_KERNEL(kv_reshape_and_cache_##width, ReshapeParams) { ReshapeAndCache<width>(p); } \
  KV_KERNEL(kv_batch_copy_##width, BatchCopyParams) { BatchCopy<width>(p); }
KV_MOVERS(1)
KV_MOVERS(2)
KV_MOVERS(4)
KV_MOVERS(8)
KV_MOVERS(16)

}  // namespace kvarve
