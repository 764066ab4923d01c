// The transport of the gRPC server: mutual TLS 1.3, or plaintext where that is allowed, and what a
// call shows of its caller.
// THREADS: any.  BLOCKS: ServerCredentialsOf, on files.
#ifndef KVARVE_SERVICES_AUTH_GRPC_CREDENTIALS_H_
#define KVARVE_SERVICES_AUTH_GRPC_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/auth/authenticator.h"

namespace kvarve {

struct TransportOptions {
  std::string address;       // for messages
  bool is_loopback = false;  // of what is listened on
  // PEM. All three: mutual TLS. None: plaintext.
  std::string certificate_file;  // the server's, with the chain up to the authority
  std::string key_file;          // its key; nobody else may read it
  std::string client_ca_file;    // authorities of the callers' certificates
  bool insecure_plaintext_off_loopback = false;
  uint32_t reload_seconds = 10;  // how often the files are looked at
};

bool UsesTls(const TransportOptions& options);

// FailedPrecondition: plaintext off loopback that nobody asked for by name; a part of TLS that is
// missing; a file that is missing, unsafe or does not fit; an OpenSSL that will not refuse TLS 1.2.
// From then on gRPC reads the files again by itself; a connection keeps what it began with.
//
// Refuses TLS 1.2 in the whole process (gRPC 1.51 has no such setting, OpenSSL's configuration
// has).
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsOf(
    const TransportOptions& options);

// What the call shows: views into `context`, `peer` (the context's peer()) and `*pem`, which is
// given the certificate's text.
Presented PresentedBy(const grpc::ServerContextBase& context, std::string_view peer,
                      std::string* pem);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_AUTH_GRPC_CREDENTIALS_H_
