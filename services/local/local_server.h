// The daemon's side of the same-host data plane (docs/formats.md 3): a Unix socket for control,
// memfds for bytes.
//
// One thread accepts, one serves each session, one reaps (reaper.h). Clients are told apart by the
// kernel's word on their process; what they may see is their tenant's, what they may hold is
// capped, and what they send is checked. OWNS: the socket, its lock file, the sessions. The cache
// is the caller's, made with arena.hold_dropped, and outlives the server. THREADS: any; Start and
// Stop once each.  BLOCKS: Stop, until the copies in progress are done.
#ifndef KVARVE_SERVICES_LOCAL_LOCAL_SERVER_H_
#define KVARVE_SERVICES_LOCAL_LOCAL_SERVER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "services/local/counters.h"
#include "services/local/options.h"
#include "storage/cache/cache.h"

namespace kvarve {

class LocalServer {
 public:
  // Serves when it returns. InvalidArgument: options; AlreadyExists: another daemon serves the
  // socket; FailedPrecondition: the socket's folder or the salt file is unsafe; Unavailable: the
  // system refuses.
  static absl::StatusOr<std::unique_ptr<LocalServer>> Start(const LocalServerOptions& options,
                                                            Cache* cache);
  ~LocalServer();

  // Takes no new sessions, ends the live ones, lets go of all leases. Called by the destructor too.
  void Stop();

  // Tenants::Complete, for who else opens namespaces. THREADS: any.
  absl::StatusOr<NamespaceDescriptor> Complete(const std::string& tenant,
                                               const NamespaceDescriptor& descriptor,
                                               const NamespaceDigest& digest) const;
  LocalStats Stats() const;
  const LocalServerOptions& options() const;

 private:
  struct Rep;
  explicit LocalServer(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_LOCAL_LOCAL_SERVER_H_
