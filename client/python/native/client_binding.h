// What client_binding.cc and engine_binding.cc share: the client as Python holds it.
// THREADS: as client/cpp/client.h.
#ifndef KVARVE_CLIENT_PYTHON_NATIVE_CLIENT_BINDING_H_
#define KVARVE_CLIENT_PYTHON_NATIVE_CLIENT_BINDING_H_

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <string_view>
#include <tuple>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"

namespace kvarve::python {

// Views and namespaces keep the Client alive.
struct PyClient {
  std::shared_ptr<Client> client;
};

// ValueError: not a number, or less than nothing.
int64_t Nanos(double seconds);

using Ranks = std::tuple<uint16_t, uint16_t, uint16_t>;  // data, pipeline, tensor
// Raises ValueError on an unknown role. Times are seconds.
// An endpoint of another host loads what reaches it (ImportError: it was not built). `remote`:
// token_file, tls_ca_file and so on, by the names of ClientOptions (TypeError: another name).
ClientOptions MakeOptions(const std::string& endpoint, const std::string& engine_id,
                          const std::string& role, const Ranks& ranks, const std::string& name,
                          uint64_t staging_bytes, double timeout, double put_timeout,
                          const pybind11::kwargs& remote);

// Grants as Python carries them from the scheduler to a worker.
struct PyGrants {
  GrantSet set;
};
// Version 1: five u64 (version, incarnation, lease, block_bytes, flags), then chunk, offset,
// checksum each.
std::string EncodeGrants(const GrantSet& grants);
absl::StatusOr<GrantSet> DecodeGrants(std::string_view bytes);

}  // namespace kvarve::python

#endif  // KVARVE_CLIENT_PYTHON_NATIVE_CLIENT_BINDING_H_
