// Where a kvarved is: "unix:///run/kvarve/kvarved.sock".
// A value: THREADS: any.
#ifndef KVARVE_CLIENT_CPP_ENDPOINT_H_
#define KVARVE_CLIENT_CPP_ENDPOINT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvarve::client {

struct Endpoint {
  std::string path;  // of the socket
};

// InvalidArgument says what an endpoint looks like; remote ones ("kvarve://host:port") are not
// served by this client.
absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text);

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_ENDPOINT_H_
