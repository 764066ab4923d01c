// The bearer token that callers of the gRPC server show. Only its SHA-256 is kept.
// THREADS: any, once read.
#ifndef KVARVE_SERVICES_AUTH_BEARER_TOKEN_H_
#define KVARVE_SERVICES_AUTH_BEARER_TOKEN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvarve {

inline constexpr size_t kMinTokenBytes = 16;
inline constexpr size_t kMaxTokenBytes = 1024;

class BearerToken {
 public:
  // The first line of `path`. FailedPrecondition: no regular file, another owner than this user or
  // root, or a mode that lets group or others in. InvalidArgument: too short, too long, or not
  // plain visible ASCII. NotFound: no file. Every message says what to do.
  static absl::StatusOr<BearerToken> FromFile(const std::string& path);

  // Whether `authorization` is "Bearer TOKEN". Takes the same time for every wrong token of one
  // length.
  bool Matches(std::string_view authorization) const;

 private:
  BearerToken() = default;
  std::array<uint8_t, 32> digest_{};
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_AUTH_BEARER_TOKEN_H_
