#include "storage/block/namespace.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/base/utf8.h"
#include "storage/block/layout.h"
#include "storage/block/sha256.h"

namespace kvarve {
namespace {

constexpr std::string_view kDomain = "kvarve-namespace-1";
constexpr uint64_t kMaxU32 = std::numeric_limits<uint32_t>::max();

// Calls codec(field) for every field, in the order of the encoding: the position is the tag,
// from 1. The one table that encoding and decoding share.
template <typename Descriptor, typename Codec>
void ForEachField(Descriptor& d, Codec&& codec) {
  codec(d.model);
  codec(d.model_digest);
  codec(d.tokenizer_digest);
  codec(d.element_type);
  codec(d.layout_version);
  codec(d.layer_begin);
  codec(d.layer_count);
  codec(d.layer_total);
  codec(d.kv_head_begin);
  codec(d.kv_head_count);
  codec(d.kv_head_total);
  codec(d.k_dim);
  codec(d.v_dim);
  codec(d.block_tokens);
  codec(d.block_bytes);
  codec(d.key_bytes);
  codec(d.hash_version);
  codec(d.adapter_digest);
  codec(d.attention_backend);
  codec(d.kv_scales);
  codec(d.generation);
  codec(d.client_salt);
  codec(d.extra);
  codec(d.tenant);
  codec(d.tenant_salt);
}

void AppendLittle(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

class Encoder {
 public:
  void operator()(const std::string& text) {
    Head(text.size());
    out_ += text;
  }
  void operator()(uint64_t value) {
    Head(8);
    AppendLittle(out_, value, 8);
  }
  void operator()(ElementType type) { (*this)(static_cast<uint64_t>(type)); }
  // The extras: of each, in the order of the names, u32 length and name, u32 length and value.
  void operator()(const std::map<std::string, std::string>& extra) {
    std::string packed;
    for (const auto& [name, value] : extra) {
      AppendLittle(packed, name.size(), 4);
      packed += name;
      AppendLittle(packed, value.size(), 4);
      packed += value;
    }
    (*this)(packed);
  }
  std::string Take() && { return std::move(out_); }

 private:
  void Head(size_t size) {
    AppendLittle(out_, ++tag_, 2);
    AppendLittle(out_, size, 4);
  }
  std::string out_{kDomain};
  uint16_t tag_ = 0;
};

class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) {
    if (rest_.starts_with(kDomain)) {
      rest_.remove_prefix(kDomain.size());
    } else {
      Fail("it does not begin with its version");
    }
  }
  void operator()(std::string& text) { text = std::string(Field()); }
  void operator()(uint64_t& value) { value = Integer(std::numeric_limits<uint64_t>::max()); }
  void operator()(uint32_t& value) { value = static_cast<uint32_t>(Integer(kMaxU32)); }
  void operator()(ElementType& type) {
    type = static_cast<ElementType>(Integer(kMaxU32));
    if (ElementBytes(type) == 0) Fail("unknown element type");
  }
  void operator()(std::map<std::string, std::string>& extra) {
    std::string_view packed = Field();
    while (!packed.empty() && error_ == nullptr) {
      std::string name = Counted(packed), value = Counted(packed);
      if (!extra.empty() && name <= extra.rbegin()->first) Fail("extras out of order");
      extra.emplace_hint(extra.end(), std::move(name), std::move(value));
    }
  }
  absl::Status Finish() {
    if (error_ == nullptr && !rest_.empty()) Fail("bytes after its end");
    if (error_ == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("namespace descriptor, field %d: %s", tag_, error_));
  }

 private:
  void Fail(const char* error) {
    if (error_ == nullptr) error_ = error;
    rest_ = {};
  }
  static uint64_t Little(std::string_view bytes) {
    uint64_t value = 0;
    for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
    return value;
  }
  std::string_view Field() {
    if (error_ != nullptr) return {};
    ++tag_;
    if (rest_.size() < 6) return Fail("missing"), std::string_view();
    if (Little(rest_.substr(0, 2)) != tag_)
      return Fail("another field in its place"), std::string_view();
    const uint64_t size = Little(rest_.substr(2, 4));
    rest_.remove_prefix(6);
    if (size > rest_.size()) return Fail("longer than what is left"), std::string_view();
    const std::string_view field = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return field;
  }
  uint64_t Integer(uint64_t max) {
    const std::string_view field = Field();
    if (error_ != nullptr) return 0;
    if (field.size() != 8) return Fail("an integer that is not 8 bytes"), 0;
    const uint64_t value = Little(field);
    if (value > max) return Fail("out of range"), 0;
    return value;
  }
  std::string Counted(std::string_view& packed) {
    if (packed.size() < 4) return Fail("extras cut short"), std::string();
    const uint64_t size = Little(packed.substr(0, 4));
    packed.remove_prefix(4);
    if (size > packed.size()) return Fail("extras cut short"), std::string();
    std::string text(packed.substr(0, size));
    packed.remove_prefix(size);
    return text;
  }

  std::string_view rest_;
  uint16_t tag_ = 0;
  const char* error_ = nullptr;
};

absl::Status Bad(std::string_view field, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat("namespace descriptor: %s %s", field, why));
}

// [begin, begin + count) inside [0, total), not empty.
absl::Status CheckRange(std::string_view name, uint64_t begin, uint64_t count, uint64_t total) {
  if (count == 0) return Bad(absl::StrFormat("%s_count", name), "must not be 0");
  if (begin + count > total) {
    return Bad(absl::StrFormat("%s_begin + %s_count", name, name),
               absl::StrFormat("exceeds %s_total", name));
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const NamespaceDescriptor& d) {
  if (d.block_tokens == 0) return Bad("block_tokens", "must not be 0");
  if (d.block_bytes == 0) return Bad("block_bytes", "must not be 0");
  if (d.block_bytes > kMaxBlockBytes) {
    return Bad("block_bytes",
               absl::StrFormat("is %d, above the limit of %d", d.block_bytes, kMaxBlockBytes));
  }
  if (d.k_dim == 0) {
    if (d.element_type != ElementType::kOpaque)
      return Bad("k_dim", "must not be 0 unless elements are opaque");
    if (d.v_dim != 0) return Bad("v_dim", "must be 0 when k_dim is");
    return absl::OkStatus();
  }
  const uint64_t bytes = BlockLayout::Of(d).CappedBlockBytes();
  if (bytes > kMaxBlockBytes)
    return Bad("layer_count, kv_head_count, k_dim, v_dim, block_tokens", "make too large a block");
  if (bytes != d.block_bytes) {
    return Bad("block_bytes",
               absl::StrFormat("is %d, but the layout needs %d", d.block_bytes, bytes));
  }
  return absl::OkStatus();
}

}  // namespace

uint32_t ElementBytes(ElementType type) {
  switch (type) {
    case ElementType::kFp32:
      return 4;
    case ElementType::kBf16:
    case ElementType::kFp16:
      return 2;
    case ElementType::kOpaque:
    case ElementType::kFp8E4m3:
    case ElementType::kFp8E5m2:
    case ElementType::kInt8:
      return 1;
  }
  return 0;
}

absl::Status ValidateDescriptor(const NamespaceDescriptor& d) {
  if (ElementBytes(d.element_type) == 0) return Bad("element_type", "is unknown");
  if (d.layout_version != 1) return Bad("layout_version", "must be 1");
  if (d.model_digest.empty()) return Bad("model_digest", "must not be empty");
  if (d.hash_version.empty()) return Bad("hash_version", "must not be empty");
  if (d.key_bytes != 16 && d.key_bytes != 32) return Bad("key_bytes", "must be 16 or 32");
  if (!IsUtf8(d.model)) return Bad("model", "is no UTF-8");
  if (!IsUtf8(d.hash_version)) return Bad("hash_version", "is no UTF-8");
  if (!IsUtf8(d.attention_backend)) return Bad("attention_backend", "is no UTF-8");
  if (!IsUtf8(d.tenant)) return Bad("tenant", "is no UTF-8");
  if (!d.tenant_salt.empty() && d.tenant_salt.size() != 32)
    return Bad("tenant_salt", "must be 32 bytes");
  KV_RETURN_IF_ERROR(CheckRange("layer", d.layer_begin, d.layer_count, d.layer_total));
  KV_RETURN_IF_ERROR(CheckRange("kv_head", d.kv_head_begin, d.kv_head_count, d.kv_head_total));
  KV_RETURN_IF_ERROR(CheckSizes(d));
  if (EncodeDescriptor(d).size() > kMaxDescriptorBytes) {
    return Bad("all its fields", absl::StrFormat("take more than %d bytes", kMaxDescriptorBytes));
  }
  return absl::OkStatus();
}

std::string EncodeDescriptor(const NamespaceDescriptor& descriptor) {
  Encoder encoder;
  ForEachField(descriptor, encoder);
  return std::move(encoder).Take();
}

absl::StatusOr<NamespaceDescriptor> DecodeDescriptor(std::string_view bytes) {
  if (bytes.size() > kMaxDescriptorBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "namespace descriptor of %d bytes; the limit is %d", bytes.size(), kMaxDescriptorBytes));
  }
  NamespaceDescriptor descriptor;
  Decoder decoder(bytes);
  ForEachField(descriptor, decoder);
  KV_RETURN_IF_ERROR(decoder.Finish());
  return descriptor;
}

NamespaceDigest DigestOf(const NamespaceDescriptor& descriptor) {
  Sha256 sha;
  sha.Update(EncodeDescriptor(descriptor));
  return {sha.Finish()};
}

NamespaceId IdOf(const NamespaceDigest& digest) {
  NamespaceId id;
  std::copy_n(digest.bytes.begin(), id.bytes.size(), id.bytes.begin());
  return id;
}

}  // namespace kvarve
