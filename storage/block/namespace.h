// A namespace is everything that must match for a block's bytes to be reusable. Its descriptor has
// one canonical encoding; SHA-256 over that names it (docs/formats.md 1). Values: THREADS: any.
#ifndef KVARVE_STORAGE_BLOCK_NAMESPACE_H_
#define KVARVE_STORAGE_BLOCK_NAMESPACE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvarve {

inline constexpr uint64_t kMaxBlockBytes = 16ull << 20;
inline constexpr size_t kMaxDescriptorBytes = 16384;

// Numbers are part of the encoding: never renumber.
enum class ElementType : uint32_t {
  kOpaque = 0,  // rows of bytes whose inside only the engine knows
  kBf16 = 1,
  kFp16 = 2,
  kFp32 = 3,
  kFp8E4m3 = 4,
  kFp8E5m2 = 5,
  kInt8 = 6,
};
// Bytes an element; 1 for kOpaque, 0 for a number that is no ElementType.
uint32_t ElementBytes(ElementType type);

struct NamespaceDescriptor {
  // What the client states.
  std::string model;             // name, for people; part of the identity
  std::string model_digest;      // of the weights and effective configuration; required
  std::string tokenizer_digest;  // may be empty when keys are made from token ids only
  ElementType element_type = ElementType::kBf16;
  uint32_t layout_version = 1;  // of the canonical block layout (layout.h)
  uint32_t layer_begin = 0;     // this block holds layers [layer_begin, layer_begin + layer_count)
  uint32_t layer_count = 0;
  uint32_t layer_total = 0;
  uint32_t kv_head_begin = 0;  // and KV heads [kv_head_begin, kv_head_begin + kv_head_count)
  uint32_t kv_head_count = 0;
  uint32_t kv_head_total = 0;
  uint32_t k_dim = 0;  // elements a head and token; MLA: the latent row, v_dim 0
  uint32_t v_dim = 0;
  uint32_t block_tokens = 0;
  uint64_t block_bytes = 0;       // must equal the layout's; the server refuses other lengths
  uint32_t key_bytes = 32;        // 16 or 32
  std::string hash_version;       // "kvarve-chain-1", or the name of another key scheme
  std::string adapter_digest;     // LoRA by content; empty for none
  std::string attention_backend;  // where it changes bytes
  std::string kv_scales;          // fp8 K and V scales, as the engine states them
  uint64_t generation = 0;        // bumped to invalidate a model at once
  std::string client_salt;        // from the client's side: private namespaces, experiments
  std::map<std::string, std::string> extra;  // sorted; layer names, rope overrides and the like

  // What the server writes from the client's credentials; empty in a client's descriptor.
  std::string tenant;
  std::string tenant_salt;  // 32 secret bytes

  friend bool operator==(const NamespaceDescriptor&, const NamespaceDescriptor&) = default;
};

struct NamespaceDigest {  // SHA-256 of the canonical bytes
  std::array<uint8_t, 32> bytes{};
  friend bool operator==(const NamespaceDigest&, const NamespaceDigest&) = default;
};

struct NamespaceId {  // the first 16 bytes of the digest
  std::array<uint8_t, 16> bytes{};
  friend auto operator<=>(const NamespaceId&, const NamespaceId&) = default;
};

// Ranges, sizes and block_bytes agree (with BlockLayout, or any size for kOpaque with k_dim 0),
// names are UTF-8, the encoding has at most kMaxDescriptorBytes; InvalidArgument names the field.
absl::Status ValidateDescriptor(const NamespaceDescriptor& descriptor);

// Canonical bytes: "kvarve-namespace-1", then every field in the order above as tag u16 (1 for
// model, and so on), length u32, bytes, all little-endian; integers and the element type as 8
// bytes; the extras as one field of u32 length, name, u32 length, value each, sorted by name. Two
// descriptors encode alike only if they are equal.
std::string EncodeDescriptor(const NamespaceDescriptor& descriptor);
// The exact inverse. InvalidArgument on anything else: a missing, repeated, unknown or reordered
// field, a wrong length, trailing bytes, more than kMaxDescriptorBytes.
absl::StatusOr<NamespaceDescriptor> DecodeDescriptor(std::string_view bytes);

NamespaceDigest DigestOf(const NamespaceDescriptor& descriptor);
NamespaceId IdOf(const NamespaceDigest& digest);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BLOCK_NAMESPACE_H_
