// The transport of the gRPC server: mutual TLS 1.3, or plaintext where that is allowed, and what a
// call shows of its caller.
// THREADS: any.  BLOCKS: ServerCredentialsOf and TlsFaults, on files.
#ifndef KVARVE_SERVICES_AUTH_GRPC_CREDENTIALS_H_
#define KVARVE_SERVICES_AUTH_GRPC_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/auth/authenticator.h"
#include "services/auth/file_fault.h"
#include "services/auth/transport_options.h"

namespace kvarve {

// The files of TLS that are bad, and those that are not named though others are, as
// ServerCredentialsOf would find out; none in plaintext.  BLOCKS: on the files.
std::vector<FileFault> TlsFaults(const TransportOptions& options);

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
