// Which tenant a client belongs to, and each tenant's secret salt. Both go into a namespace's
// descriptor here, on the server's side, so that no client can name another tenant's blocks.
//
// Salts are 32 random bytes a tenant. With a state folder they are kept in its file "tenant_salts"
// (mode 0600), so that namespaces keep their ids over a restart. THREADS: any.  BLOCKS: Create, on
// the file.
#ifndef KVARVE_SERVICES_LOCAL_TENANTS_H_
#define KVARVE_SERVICES_LOCAL_TENANTS_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/identity/identity.h"
#include "services/local/options.h"
#include "storage/block/namespace.h"

namespace kvarve {

inline constexpr size_t kTenantSaltBytes = 32;
inline constexpr size_t kMaxTenants = 4096;

class Tenants {
 public:
  // InvalidArgument: a rule without a name, or too many. FailedPrecondition: a salt file that
  // others may read, or that is damaged (it is never replaced: that would empty every namespace).
  // Unavailable: cannot be written.
  static absl::StatusOr<std::unique_ptr<Tenants>> Create(const LocalServerOptions& options);

  const std::string& TenantOf(uid_t uid, gid_t gid, const std::vector<gid_t>& groups) const;

  // The complete descriptor of a client's part: tenant and salt written in. InvalidArgument: the
  // client wrote them itself. FailedPrecondition: `digest` is not ours of the client's part: the
  // two sides encode differently.
  // NotFound: a tenant that is not configured (it has no salt).
  absl::StatusOr<NamespaceDescriptor> Complete(const std::string& tenant,
                                               NamespaceDescriptor descriptor,
                                               const NamespaceDigest& digest) const;

 private:
  Tenants() = default;

  std::vector<TenantRule> rules_;
  std::string default_tenant_;
  std::map<std::string, std::string> salts_;  // every tenant of the options
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_LOCAL_TENANTS_H_
