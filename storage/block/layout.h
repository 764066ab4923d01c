// The canonical block layout, version 1: layer-major; in a layer K then V; in each head-major, then
// token, then head dimension, no padding: [layer][K|V][kv head][token][dim]. So a layer is one
// contiguous slice (loading overlaps with computing) and a range of heads is strided.
//
// A value: THREADS: any.
#ifndef KVARVE_STORAGE_BLOCK_LAYOUT_H_
#define KVARVE_STORAGE_BLOCK_LAYOUT_H_

#include <cstdint>

#include "storage/block/namespace.h"

namespace kvarve {

struct BlockLayout {
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t tokens = 0;
  uint32_t k_dim = 0;  // elements
  uint32_t v_dim = 0;  // 0 for MLA: one latent row a token, held as K
  uint32_t element_bytes = 0;

  static BlockLayout Of(const NamespaceDescriptor& descriptor);

  uint64_t KRowBytes() const { return uint64_t{k_dim} * element_bytes; }  // one token of one head
  uint64_t VRowBytes() const { return uint64_t{v_dim} * element_bytes; }
  uint64_t KBytes() const { return uint64_t{kv_heads} * tokens * KRowBytes(); }  // of one layer
  uint64_t VBytes() const { return uint64_t{kv_heads} * tokens * VRowBytes(); }
  uint64_t LayerBytes() const { return KBytes() + VBytes(); }
  uint64_t BlockBytes() const { return layers * LayerBytes(); }
  // BlockBytes(), or kMaxBlockBytes + 1 when it is more. For numbers that somebody claims: the
  // plain product may wrap.
  uint64_t CappedBlockBytes() const;
  // Byte offset of row (layer, head, token).
  uint64_t KOffset(uint32_t layer, uint32_t head, uint32_t token) const {
    return layer * LayerBytes() + (uint64_t{head} * tokens + token) * KRowBytes();
  }
  uint64_t VOffset(uint32_t layer, uint32_t head, uint32_t token) const {
    return layer * LayerBytes() + KBytes() + (uint64_t{head} * tokens + token) * VRowBytes();
  }
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BLOCK_LAYOUT_H_
