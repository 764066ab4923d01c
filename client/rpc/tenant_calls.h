// What a tenant asks about itself. THREADS: any.  BLOCKS: up to the deadline.
#ifndef KVARVE_CLIENT_RPC_TENANT_CALLS_H_
#define KVARVE_CLIENT_RPC_TENANT_CALLS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/cpp/tenant_stats.h"
#include "client/rpc/remote_node.h"

namespace kvarve::client {

absl::StatusOr<TenantStats> ReadTenantStats(RemoteNode* node, int64_t deadline_nanos);

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_TENANT_CALLS_H_
