#include "storage/block/prefix_hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "storage/base/status_macros.h"
#include "storage/block/sha256.h"

namespace kvarve {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie");

constexpr std::string_view kDomain = kChainHashVersion;

void AppendU32(std::string& out, uint32_t value) {
  out.append(reinterpret_cast<const char*>(&value), 4);
}

}  // namespace

PrefixHasher::PrefixHasher(uint32_t block_tokens, std::span<const std::string> extras,
                           int key_bytes)
    : block_tokens_(block_tokens), key_bytes_(key_bytes) {
  KV_CHECK(block_tokens > 0);
  KV_CHECK(key_bytes == 16 || key_bytes == 32);
  AppendU32(first_extras_, static_cast<uint32_t>(extras.size()));
  for (const std::string& extra : extras) {
    AppendU32(first_extras_, static_cast<uint32_t>(extra.size()));
    first_extras_ += extra;
  }
}

void PrefixHasher::Extend(std::span<const uint32_t> tokens) {
  const size_t blocks = tokens.size() / block_tokens_;
  if (blocks <= keys_.size()) return;
  keys_.reserve(blocks);
  Sha256 sha;
  for (size_t i = keys_.size(); i < blocks; ++i) {
    const std::span<const uint32_t> block = tokens.subspan(i * block_tokens_, block_tokens_);
    sha.Update(kDomain);
    sha.Update(parent_.data(), parent_.size());
    if (i == 0) {
      sha.Update(first_extras_);
    } else {
      constexpr uint32_t kNoExtras = 0;
      sha.Update(&kNoExtras, sizeof(kNoExtras));
    }
    sha.Update(&block_tokens_, sizeof(block_tokens_));
    sha.Update(block.data(), block.size_bytes());
    parent_ = sha.Finish();
    BlockKey& key = keys_.emplace_back();
    std::copy_n(parent_.begin(), key_bytes_, key.bytes.begin());
  }
}

}  // namespace kvarve
