#include "client/rpc/tenant_calls.h"

#include <cstring>
#include <string>
#include <utility>

#include "client/rpc/grpc_status.h"
#include "storage/base/status_macros.h"

namespace kvarve::client {
namespace {

TenantNamespace NamespaceOf(const v1::Namespace& told) {
  TenantNamespace ns;
  if (told.ns_id().size() == ns.id.bytes.size()) {
    std::memcpy(ns.id.bytes.data(), told.ns_id().data(), ns.id.bytes.size());
  }
  ns.tenant = told.tenant();
  ns.model = told.model();
  ns.block_bytes = told.block_bytes();
  ns.key_bytes = told.key_bytes();
  return ns;
}

TenantStats StatsOf(const v1::StatsReply& reply) {
  const v1::HostTier& host = reply.host();
  const v1::Counters& counters = reply.counters();
  TenantStats stats;
  stats.daemon_version = reply.daemon_version();
  stats.incarnation = reply.incarnation();
  stats.capacity_bytes = host.capacity_bytes();
  stats.chunk_bytes = host.chunk_bytes();
  stats.used_bytes = host.used_bytes();
  stats.leased_bytes = host.leased_bytes();
  stats.blocks = host.blocks();
  stats.lookups = counters.lookups();
  stats.lookup_keys = counters.lookup_keys();
  stats.hit_blocks = counters.hit_blocks();
  stats.miss_blocks = counters.miss_blocks();
  stats.hit_bytes = counters.hit_bytes();
  stats.stored_blocks = counters.stored_blocks();
  stats.stored_bytes = counters.stored_bytes();
  stats.evicted_blocks = counters.evicted_blocks();
  for (const v1::Namespace& ns : reply.namespaces()) stats.namespaces.push_back(NamespaceOf(ns));
  return stats;
}

}  // namespace

absl::StatusOr<TenantStats> ReadTenantStats(RemoteNode* node, int64_t deadline_nanos) {
  v1::StatsReply reply;
  KV_RETURN_IF_ERROR(node->Call([&] {
    const NodeLinkPtr link = node->link();
    grpc::ClientContext context;
    PrepareContext(&context, link->shown->token, deadline_nanos);
    return FromGrpc(link->stub->Stats(&context, v1::StatsRequest(), &reply));
  }));
  return StatsOf(reply);
}

}  // namespace kvarve::client
