#include "storage/block/layout.h"

#include <algorithm>

namespace kvarve {

BlockLayout BlockLayout::Of(const NamespaceDescriptor& descriptor) {
  BlockLayout layout;
  layout.layers = descriptor.layer_count;
  layout.kv_heads = descriptor.kv_head_count;
  layout.tokens = descriptor.block_tokens;
  layout.k_dim = descriptor.k_dim;
  layout.v_dim = descriptor.v_dim;
  layout.element_bytes = ElementBytes(descriptor.element_type);
  return layout;
}

uint64_t BlockLayout::CappedBlockBytes() const {
  unsigned __int128 bytes = uint64_t{k_dim} + v_dim;
  for (const uint32_t factor : {element_bytes, kv_heads, tokens, layers}) {
    bytes = std::min<unsigned __int128>(bytes * factor, kMaxBlockBytes + 1);
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace kvarve
