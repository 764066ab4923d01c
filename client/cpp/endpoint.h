// Where a kvarved is: "unix:///run/kvarve/kvarved.sock" on this host, "kvarves://host:port" on any,
// and "kvarve://host:port" without encryption.
// A value: THREADS: any.
#ifndef KVARVE_CLIENT_CPP_ENDPOINT_H_
#define KVARVE_CLIENT_CPP_ENDPOINT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvarve::client {

struct Endpoint {
  std::string path;     // of the socket; empty: another host
  std::string address;  // "host:port", an IPv6 host in brackets
  bool tls = false;     // of a remote one
  bool is_remote() const { return path.empty(); }
};

// InvalidArgument says what an endpoint looks like.
absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text);

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_ENDPOINT_H_
