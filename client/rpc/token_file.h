// The bearer token that this client shows. THREADS: any.  BLOCKS: on the file.
#ifndef KVARVE_CLIENT_RPC_TOKEN_FILE_H_
#define KVARVE_CLIENT_RPC_TOKEN_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace kvarve::client {

// The first line of `path`; empty for no path. NotFound, PermissionDenied: the file.
// InvalidArgument: not a line of visible characters. FailedPrecondition: others may read the file.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_TOKEN_FILE_H_
