#include "storage/block/layout.h"

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

}  // namespace kvarve
