#include "storage/testing/opaque_namespace.h"

#include <utility>

namespace kvarve {

NamespaceDescriptor OpaqueNamespace(std::string model, uint64_t block_bytes, uint32_t key_bytes) {
  NamespaceDescriptor d;
  d.model = std::move(model);
  d.model_digest = "digest";
  d.element_type = ElementType::kOpaque;
  d.layer_count = d.layer_total = 1;
  d.kv_head_count = d.kv_head_total = 1;
  d.block_tokens = 16;
  d.block_bytes = block_bytes;
  d.key_bytes = key_bytes;
  d.hash_version = "kvarve-chain-1";
  return d;
}

}  // namespace kvarve
