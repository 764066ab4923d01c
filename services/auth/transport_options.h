// How the gRPC server is reached. Values: THREADS: any.
#ifndef KVARVE_SERVICES_AUTH_TRANSPORT_OPTIONS_H_
#define KVARVE_SERVICES_AUTH_TRANSPORT_OPTIONS_H_

#include <cstdint>
#include <string>

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

inline bool UsesTls(const TransportOptions& options) {
  return !options.certificate_file.empty() || !options.key_file.empty() ||
         !options.client_ca_file.empty();
}

}  // namespace kvarve

#endif  // KVARVE_SERVICES_AUTH_TRANSPORT_OPTIONS_H_
