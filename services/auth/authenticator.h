// Who calls: from a peer's certificate and bearer token to a Caller, or to a refusal. The rules are
// in docs/security.md; the seam to the gRPC services, which ask once a call.
//
// Tokens that were verified lately are remembered by their digest, so that a call costs a hash and
// a look-up; every call checks expiry and revocation anew. Files are read again by a thread of its
// own. Failures are counted by reason, of each of which one a second is logged, and who proves
// nothing is slowed down by address. No token, key or part of them is kept in the clear, logged, or
// quoted in a message.
// THREADS: any.  BLOCKS: Create and Reload, on files.
#ifndef KVARVE_SERVICES_AUTH_AUTHENTICATOR_H_
#define KVARVE_SERVICES_AUTH_AUTHENTICATOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/identity/identity.h"
#include "services/auth/refusals.h"
#include "storage/base/clock.h"

namespace kvarve {

struct AuthOptions {
  // Callers show certificates, verified by TLS. Otherwise (plaintext) only tokens count.
  bool tls = false;
  std::string trust_domain;  // of SPIFFE names; empty: only kvarve:// names

  std::string token_file;        // one shared token (mode 0600) of `default_tenant`, all verbs
  std::string keys_file;         // JSON Web Key Set; empty: no signed tokens
  std::string revocations_file;  // may be missing at first; empty: none
  std::string token_audience = "kvarve";
  std::string token_issuer;  // empty: any whose key is in the set

  std::string default_tenant = "default";
  std::set<std::string> tenants;  // those that are configured; a caller of another is refused

  int64_t reload_nanos = 1'000'000'000;  // how often files are looked at
  const Clock* clock = nullptr;          // null: the system's
  std::function<int64_t()> now_seconds;  // since 1970; null: the system's
};

// What a call shows. The certificate is of the connection, verified by TLS.
struct Presented {
  std::string_view peer;                          // as gRPC names it: "ipv4:10.0.0.1:5000"
  std::string_view certificate_pem;               // empty: none
  std::optional<std::string_view> authorization;  // "Bearer TOKEN"
  bool repeated = false;                          // the header came more than once
};

struct Caller {
  Role role = Role::kClient;
  std::string tenant;  // of a client; empty for the others
  VerbSet verbs;       // of a client
  std::string name;    // for logs: the token's id, or the certificate's fingerprint

  // PermissionDenied, with what would be needed. Of blocks only clients see any.
  absl::Status May(Verb verb) const;
  absl::Status MayGreet() const;  // Hello: whoever may do anything at all with blocks
  absl::Status MayAdminister() const;
};

struct AuthStats {
  std::array<uint64_t, kAuthFaults> failures{};
  uint64_t accepted = 0;
  uint64_t tokens_verified = 0;  // signatures checked; the others were remembered
  uint64_t reloads = 0, reload_failures = 0;
};

class Authenticator {
 public:
  // FailedPrecondition: no way to be let in is configured, or the plaintext one without tokens;
  // and what a file is refused for.
  static absl::StatusOr<std::unique_ptr<Authenticator>> Create(const AuthOptions& options);
  ~Authenticator();

  // Unauthenticated: with what to do; ResourceExhausted: too many failures of this address, which
  // shuts out nobody whose token or certificate was good lately.
  absl::StatusOr<Caller> Authenticate(const Presented& presented);

  // What the Caller's functions of these names say of who was let in. A refusal is counted and
  // logged as the others are, but slows nobody down: it is no guess, costs what a throttled call
  // would, and a client that lacks one verb, or its neighbours at that address, shall keep the
  // rest.
  absl::Status May(const Caller& caller, Verb verb, std::string_view peer);
  absl::Status MayGreet(const Caller& caller, std::string_view peer);
  absl::Status MayAdminister(const Caller& caller, std::string_view peer);

  AuthStats Stats() const;
  // Looks at the files now; the thread does so by itself. A file that is bad leaves what was read
  // before in force, is counted and logged.
  void Reload();

 private:
  struct Rep;
  explicit Authenticator(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_AUTH_AUTHENTICATOR_H_
