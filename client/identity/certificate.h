// What a certificate says, and development certificates. Chains and signatures of peers are TLS's
// matter. THREADS: any; no state.
#ifndef KVARVE_CLIENT_IDENTITY_CERTIFICATE_H_
#define KVARVE_CLIENT_IDENTITY_CERTIFICATE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvarve {

inline constexpr size_t kMaxCertificateBytes = 64 << 10;

struct CertificateFacts {
  std::string fingerprint;  // SHA-256 of its DER, 64 hexadecimal digits
  std::vector<std::string> uris;
  int64_t not_before = 0, not_after = 0;  // seconds since 1970
};
// Of the first certificate of `pem`. InvalidArgument: none, or one that cannot be read.
absl::StatusOr<CertificateFacts> ReadCertificate(std::string_view pem);

// InvalidArgument: `private_pem` is not the key of `certificate_pem`'s first certificate.
absl::Status CheckKeyPair(std::string_view certificate_pem, std::string_view private_pem);

// A certificate and its key, both PEM.
struct Issued {
  std::string certificate;
  std::string key;
};
struct CertificateRequest {
  std::string name;                // common name, for people
  std::vector<std::string> uris;   // "kvarve://client/team-a"
  std::vector<std::string> hosts;  // DNS names and addresses; of a server
  bool server = false;             // may be a server (else a client only)
  int64_t not_before = 0, not_after = 0;
};
absl::StatusOr<Issued> NewAuthority(const std::string& name, int64_t not_before, int64_t not_after);
absl::StatusOr<Issued> IssueCertificate(const Issued& authority, const CertificateRequest& request);

}  // namespace kvarve

#endif  // KVARVE_CLIENT_IDENTITY_CERTIFICATE_H_
