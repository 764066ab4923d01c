#include "client/cli/block_input.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/block/prefix_hash.h"

namespace kvarve::cli {
namespace {

constexpr uint32_t kKeyBytes = 32;
constexpr size_t kReadBytes = 1 << 20;

bool IsSeparator(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == ',' || c == '[' || c == ']';
}

absl::StatusOr<BlockKey> ParseKey(std::string_view hex) {
  const absl::StatusOr<std::string> bytes = FromHex(hex);
  BlockKey key;
  if (!bytes.ok() || bytes->size() != kKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--key %s: a key has 64 hexadecimal digits", hex.substr(0, 80)));
  }
  std::memcpy(key.bytes.data(), bytes->data(), kKeyBytes);
  return key;
}

}  // namespace

absl::StatusOr<NamespaceDescriptor> DescriptorOf(const BlockFlags& flags) {
  NamespaceDescriptor descriptor;
  descriptor.model = flags.model;
  descriptor.model_digest = flags.model_digest;
  descriptor.client_salt = flags.salt;
  descriptor.element_type = ElementType::kOpaque;
  descriptor.layer_count = descriptor.layer_total = 1;
  descriptor.kv_head_count = descriptor.kv_head_total = 1;
  descriptor.block_tokens = flags.block_tokens;
  descriptor.key_bytes = kKeyBytes;
  descriptor.hash_version = kChainHashVersion;
  KV_ASSIGN_OR_RETURN(descriptor.block_bytes, ParseBytes(flags.block_bytes));
  KV_RETURN_IF_ERROR(ValidateDescriptor(descriptor));
  return descriptor;
}

absl::StatusOr<std::vector<uint32_t>> ParseTokens(std::string_view text) {
  std::vector<uint32_t> tokens;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    while (at != end && IsSeparator(*at)) ++at;
    if (at == end) return tokens;
    uint32_t token = 0;
    const auto [next, error] = std::from_chars(at, end, token);
    if (error != std::errc() || (next != end && !IsSeparator(*next))) {
      return absl::InvalidArgumentError(
          absl::StrFormat("token %d (\"%s\") is no number below 2^32", tokens.size(),
                          std::string(at, std::min<size_t>(20, end - at))));
    }
    if (tokens.size() == kMaxTokens) return absl::InvalidArgumentError("too many tokens");
    tokens.push_back(token);
    at = next;
  }
}

absl::StatusOr<std::vector<BlockKey>> KeysOf(const BlockFlags& flags) {
  const bool has_tokens = !flags.tokens.empty() || !flags.tokens_file.empty();
  if (flags.keys.empty() != has_tokens || (!flags.tokens.empty() && !flags.tokens_file.empty())) {
    return absl::InvalidArgumentError(
        "say which blocks: exactly one of --key, --tokens and --tokens-file");
  }
  std::vector<BlockKey> keys;
  if (!has_tokens) {
    for (const std::string& hex : flags.keys) {
      KV_ASSIGN_OR_RETURN(const BlockKey key, ParseKey(hex));
      keys.push_back(key);
    }
    return keys;
  }
  if (flags.block_tokens == 0) return absl::InvalidArgumentError("--block-tokens must not be 0");
  std::string text = flags.tokens;
  if (!flags.tokens_file.empty()) {
    KV_ASSIGN_OR_RETURN(text, ReadInput(flags.tokens_file));
  }
  KV_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens, ParseTokens(text));
  PrefixHasher hasher(flags.block_tokens, {}, kKeyBytes);
  hasher.Extend(tokens);
  if (hasher.keys().empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d tokens do not fill one block of %d (--block-tokens)", tokens.size(),
                        flags.block_tokens));
  }
  return hasher.keys();
}

absl::StatusOr<std::string> ReadInput(const std::string& path) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(nullptr, &std::fclose);
  std::FILE* file = stdin;
  if (path != "-") {
    opened.reset(std::fopen(path.c_str(), "re"));
    if (opened == nullptr)
      return absl::NotFoundError(absl::StrFormat("%s: %s", path, std::strerror(errno)));
    file = opened.get();
  }
  std::string content;
  while (true) {
    const size_t before = content.size();
    content.resize(before + kReadBytes);
    const size_t got = std::fread(content.data() + before, 1, kReadBytes, file);
    content.resize(before + got);
    if (got == 0) break;
    if (content.size() > kMaxInputBytes)
      return absl::ResourceExhaustedError(path + ": is larger than 1 GiB");
  }
  if (std::ferror(file) != 0) return absl::InternalError(path + ": cannot be read");
  return content;
}

}  // namespace kvarve::cli
