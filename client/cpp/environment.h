// Where a client that is told no endpoint finds its daemon. THREADS: as getenv.
#ifndef KVARVE_CLIENT_CPP_ENVIRONMENT_H_
#define KVARVE_CLIENT_CPP_ENVIRONMENT_H_

#include "client/cpp/client.h"

namespace kvarve::client {

inline constexpr char kDefaultEndpoint[] = "unix:///run/kvarve/kvarved.sock";

// Without an endpoint in `options`: KVARVE_ENDPOINT, and, where the options have none, the
// credentials for it (KVARVE_TOKEN_FILE, KVARVE_TLS_CA_FILE, _CERTIFICATE_FILE, _KEY_FILE,
// _SERVER_NAME, KVARVE_INSECURE_PLAINTEXT_OFF_LOOPBACK); without that, kDefaultEndpoint. Who names
// an endpoint names its credentials: none go to a daemon that they are not for.
void ResolveEndpoint(ClientOptions* options);

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_ENVIRONMENT_H_
