// What put, get and lookup are told: a namespace by its sizes, keys by hexadecimal digits or by
// tokens. THREADS: one.
#ifndef KVARVE_CLIENT_CLI_BLOCK_INPUT_H_
#define KVARVE_CLIENT_CLI_BLOCK_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/block/block_key.h"
#include "storage/block/namespace.h"

namespace kvarve::cli {

inline constexpr size_t kMaxInputBytes = size_t{1} << 30;
inline constexpr size_t kMaxTokens = size_t{16} << 20;

struct BlockFlags {
  std::string model = "kvarve-cli";
  std::string model_digest = "kvarve-cli";
  std::string salt;
  std::string block_bytes = "1MiB";
  uint32_t block_tokens = 128;
  std::vector<std::string> keys;  // hexadecimal
  std::string tokens;             // "1,2,3"
  std::string tokens_file;        // "-": standard input
};

// A namespace of opaque blocks. Two commands with the same flags name the same one.
absl::StatusOr<NamespaceDescriptor> DescriptorOf(const BlockFlags& flags);

// Keys in the order given, or the chain hash of all full blocks of the tokens. InvalidArgument:
// neither or both kinds, no full block, digits or tokens that are none.
absl::StatusOr<std::vector<BlockKey>> KeysOf(const BlockFlags& flags);

// Numbers separated by blanks, commas or brackets: what a tokenizer prints, or a JSON list.
absl::StatusOr<std::vector<uint32_t>> ParseTokens(std::string_view text);

// A whole file; "-" is standard input. NotFound, or ResourceExhausted beyond kMaxInputBytes.
absl::StatusOr<std::string> ReadInput(const std::string& path);

}  // namespace kvarve::cli

#endif  // KVARVE_CLIENT_CLI_BLOCK_INPUT_H_
