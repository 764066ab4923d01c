// What the same-host plane's server is told at its start. Values: THREADS: any.
#ifndef KVARVE_SERVICES_LOCAL_OPTIONS_H_
#define KVARVE_SERVICES_LOCAL_OPTIONS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/local/messages.h"
#include "storage/cache/quota.h"

namespace kvarve {

// Whose blocks a client sees. The first rule that matches wins; a rule matches when all it states
// is true.
struct TenantRule {
  std::optional<uid_t> uid;
  std::optional<gid_t> gid;  // primary or supplementary
  std::string tenant;
};

// A JSON text in, a JSON text out. Called in the session's thread.
using AdminHandler = std::function<absl::StatusOr<std::string>(std::string_view json, uid_t uid)>;

struct SlowRequest {
  local::Type type = local::Type::kError;
  int64_t nanos = 0;
  uint64_t session = 0;
  uid_t uid = 0;
  size_t bytes = 0;  // of the request's packet
};

// How the daemon learns of a client process's end, best first: the socket's own pidfd (Linux 6.5,
// also across pid namespaces); pidfd_open by number; neither, then a while after the last socket
// closed.
enum class PidfdSource { kPeer, kOpen, kNone };

struct LocalServerOptions {
  std::string socket_path = "/run/kvarve/kvarved.sock";
  std::string state_dir;  // keeps the tenants' salts over restarts; empty: in memory only
  std::string daemon_version = "0.1.0";

  // Who may connect, by uid, or by primary or supplementary gid. Both empty: the own uid, and the
  // group "kvarve" when it exists. Root may always, unless `admit_root` is off.
  std::vector<uid_t> allowed_uids;
  std::vector<gid_t> allowed_gids;
  bool admit_root = true;
  std::vector<TenantRule> tenants;
  std::string default_tenant = "default";
  std::set<std::string> more_tenants;  // that callers of other planes have
  TenantQuotas quotas;                 // of connections; the rest is the cache's
  TenantQuota default_quota;           // of tenants that are not named there

  AdminHandler admin;             // null: ADMIN answers Unimplemented
  std::vector<uid_t> admin_uids;  // besides the own uid and root

  uint32_t max_sessions = 512;
  uint32_t max_sessions_per_uid = 32;
  // Sessions that ended without BYE while their process lives; at this number the process is
  // refused.
  uint32_t max_ended_per_process = 64;
  uint64_t lease_bytes_per_process = 0;  // leased and quarantined; 0: a quarter of the capacity
  uint32_t max_leases_per_session = 65536;
  uint32_t max_holds_per_session = 1024;
  int64_t max_hold_nanos = 10'000'000'000;
  uint64_t staging_bytes_per_session = 256ull << 20;
  uint64_t staging_bytes_per_process = 512ull << 20;
  uint64_t staging_bytes_total = 2ull << 30;

  // How long a session looks for the next request before it sleeps, while that pays off; 0: never.
  int64_t poll_nanos = 50'000;
  int64_t hello_timeout_nanos = 2'000'000'000;
  int64_t tick_nanos = 250'000'000;    // an idle session hears of chunks within this
  int64_t reaper_nanos = 100'000'000;  // holds end and dropped chunks go within this
  int64_t no_pidfd_nanos =
      5'000'000'000;                   // PidfdSource::kNone: from the last socket's end to "gone"
  size_t max_queued_bytes = 1u << 20;  // answers that wait for a client to read
  int64_t max_stuck_nanos = 5'000'000'000;  // without one byte taken

  int64_t slow_request_nanos = 100'000'000;                 // 0: none is slow
  std::function<void(const SlowRequest&)> on_slow_request;  // besides the log line

  uint16_t version_min = local::kVersionMin;
  uint16_t version_max = local::kVersionMax;
  PidfdSource pidfd_source = PidfdSource::kPeer;
  bool offers_mailbox = true;  // to clients that take one (mailbox.h)
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_LOCAL_OPTIONS_H_
