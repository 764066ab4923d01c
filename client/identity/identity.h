// Who a caller is: its role, its tenant, and what it may do. Also the names of these in tokens and
// certificates (docs/security.md). Values: THREADS: any.
#ifndef KVARVE_CLIENT_IDENTITY_IDENTITY_H_
#define KVARVE_CLIENT_IDENTITY_IDENTITY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvarve {

inline constexpr size_t kMaxTenantNameBytes = 128;

// InvalidArgument unless `tenant` is 1 to kMaxTenantNameBytes bytes of UTF-8 text without control
// characters.
absl::Status CheckTenantName(std::string_view tenant);

enum class Role : uint8_t {
  kClient = 0,  // an engine, a router, a tool: one tenant's blocks
  kPeer = 1,    // another kvarved: every tenant's blocks, no administration
  kAdmin = 2,   // administration, no blocks
};
std::string_view RoleName(Role role);

// What a token may allow. Numbers are bits of VerbSet.
enum class Verb : uint8_t {
  kLookup = 0,      // hit lengths
  kRead = 1,        // blocks, pins and touches
  kWrite = 2,       // new blocks
  kInvalidate = 3,  // blocks of the own tenant
  kStats = 4,       // counters and events of the own tenant
};
inline constexpr size_t kVerbs = 5;
std::string_view VerbName(Verb verb);

class VerbSet {
 public:
  static constexpr VerbSet All() { return VerbSet((1u << kVerbs) - 1); }
  constexpr VerbSet() = default;
  constexpr bool Has(Verb verb) const { return (bits_ >> static_cast<unsigned>(verb) & 1) != 0; }
  constexpr void Add(Verb verb) { bits_ |= 1u << static_cast<unsigned>(verb); }
  constexpr bool empty() const { return bits_ == 0; }
  std::vector<std::string> Names() const;
  // InvalidArgument: a name that is no verb (with the list of them), or none at all.
  static absl::StatusOr<VerbSet> Parse(std::span<const std::string> names);
  friend bool operator==(VerbSet, VerbSet) = default;

 private:
  explicit constexpr VerbSet(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = 0;
};

// What a certificate says of its holder.
struct CertificateIdentity {
  Role role = Role::kClient;
  std::string tenant;  // of a client; empty: a token has to say it
};

// The identity in a certificate's URI names: exactly one of them must be ours.
//   kvarve://client/TENANT   kvarve://client   kvarve://peer   kvarve://admin
//   spiffe://TRUST_DOMAIN/kvarve/client/TENANT  and so on, when `trust_domain` is not empty
// TENANT is percent-encoded where it has other characters than letters, digits and "-._~".
// Unauthenticated: none, several, or one that does not parse.
absl::StatusOr<CertificateIdentity> IdentityOfUris(std::span<const std::string> uris,
                                                   std::string_view trust_domain);
// The URI name that says `identity`, in the kvarve:// form.
std::string UriOfIdentity(const CertificateIdentity& identity);

}  // namespace kvarve

#endif  // KVARVE_CLIENT_IDENTITY_IDENTITY_H_
