// The list of tokens and certificates that are no longer taken, though their time is not over: a
// text file, one a line (docs/security.md).
//   token ID [EXPIRES]         by its "jti"; EXPIRES (seconds since 1970) says when to forget it
//   certificate FINGERPRINT    SHA-256 of its DER, in hexadecimal; colons may stand between
//   # a remark
// THREADS: any; values.
#ifndef KVARVE_CLIENT_IDENTITY_REVOCATIONS_H_
#define KVARVE_CLIENT_IDENTITY_REVOCATIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvarve {

inline constexpr size_t kMaxRevocationBytes = 16 << 20;
inline constexpr size_t kMaxRevocations = 1 << 17;

struct Revocations {
  std::map<std::string, int64_t, std::less<>> tokens;  // id -> when it expires; 0: unknown
  std::set<std::string, std::less<>> certificates;     // fingerprints, 64 lower-case digits
  friend bool operator==(const Revocations&, const Revocations&) = default;
};

// InvalidArgument: the first line that is none of the above, by number. A list with a bad line is
// no list: a line that is skipped would let somebody in.
absl::StatusOr<Revocations> ParseRevocations(std::string_view text);
// Leaves out tokens that expired before `now_seconds`.
std::string RevocationsText(const Revocations& revocations, int64_t now_seconds);

}  // namespace kvarve

#endif  // KVARVE_CLIENT_IDENTITY_REVOCATIONS_H_
