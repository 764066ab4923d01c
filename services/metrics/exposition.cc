#include "services/metrics/exposition.h"

#include <prometheus/text_serializer.h>

#include <array>
#include <sstream>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "services/metrics/metric.h"

namespace kvarve {
namespace {

using prometheus::MetricType;

// Snapshots and samples of a row.
using Snapshot = const MetricsSnapshot&;
using Out = Samples&;

void CollectArena(Snapshot s, Out out) {
  for (const PoolStats& pool : s.cache.pools) {
    out.Add(pool.used_bytes, {{"pool", pool.tenant}, {"state", "resident"}});
    out.Add(pool.chunk_bytes - pool.used_bytes, {{"pool", pool.tenant}, {"state", "free"}});
  }
}

void CollectTenantBytes(Snapshot s, Out out) {
  for (const PoolStats& of : s.cache.pools) {
    out.Add(of.used_bytes, {{"tenant", of.tenant}, {"tier", "host"}});
  }
}

// A row for what tenants have, and for what they may have where that is limited.
void CollectTenantQuotas(Snapshot s, Out out) {
  for (const PoolStats& of : s.cache.pools) {
    for (size_t i = 0; i < kResources; ++i) {
      const auto resource = static_cast<Resource>(i);
      const QuotaRange& range = of.quota.of(resource);
      const std::string name(ResourceName(resource));
      if (range.floor > 0) {
        out.Add(range.floor, {{"tenant", of.tenant}, {"resource", name}, {"limit", "floor"}});
      }
      if (range.ceiling != QuotaRange::kNoCeiling) {
        out.Add(range.ceiling, {{"tenant", of.tenant}, {"resource", name}, {"limit", "ceiling"}});
      }
    }
    out.Add(of.share_bytes,
            {{"tenant", of.tenant}, {"resource", "host_bytes"}, {"limit", "share"}});
  }
}

void CollectTenantKeys(Snapshot s, Out out) {
  for (const PoolStats& of : s.cache.pools) {
    out.Add(of.lookup_hit_keys, {{"tenant", of.tenant}, {"result", "hit"}});
    out.Add(of.lookup_keys - of.lookup_hit_keys, {{"tenant", of.tenant}, {"result", "miss"}});
  }
}

void CollectQuotaRefusals(Snapshot s, Out out) {
  for (const PoolStats& of : s.cache.pools) {
    for (size_t i = 0; i < kResources; ++i) {
      if (of.quota_refusals[i] == 0) continue;
      out.Add(of.quota_refusals[i],
              {{"tenant", of.tenant},
               {"resource", std::string(ResourceName(static_cast<Resource>(i)))}});
    }
  }
}

// A number of each tenant's pool.
template <uint64_t PoolStats::*member>
void CollectOfTenants(Snapshot s, Out out) {
  for (const PoolStats& of : s.cache.pools) out.Add(of.*member, {{"tenant", of.tenant}});
}

void CollectTenantSessions(Snapshot s, Out out) {
  for (const auto& [tenant, sessions] : s.local.sessions_of_tenant) {
    out.Add(sessions, {{"tenant", tenant}});
  }
}

void CollectTenantRequests(Snapshot s, Out out) {
  const auto add = [&](const std::string& tenant, const char* transport, const auto& of) {
    out.Add(of.ok, {{"tenant", tenant}, {"transport", transport}, {"result", "ok"}});
    out.Add(of.failed, {{"tenant", tenant}, {"transport", transport}, {"result", "failed"}});
  };
  for (const auto& [tenant, of] : s.local.requests_of_tenant) add(tenant, "local", of);
  if (!s.rpc.has_value()) return;
  for (const auto& [tenant, of] : s.rpc->calls_of_tenant) add(tenant, "grpc", of);
}

void CollectTenantTransportBytes(Snapshot s, Out out) {
  const auto add = [&](uint64_t bytes, const std::string& tenant, const char* direction,
                       const char* transport) {
    out.Add(bytes, {{"tenant", tenant}, {"transport", transport}, {"direction", direction}});
  };
  for (const auto& [tenant, of] : s.local.requests_of_tenant) {
    add(of.granted_bytes, tenant, "get", "local_map");
    add(of.read_bytes, tenant, "get", "local_copy");
    add(of.put_bytes, tenant, "put", "local_copy");
  }
  if (!s.rpc.has_value()) return;
  for (const auto& [tenant, of] : s.rpc->calls_of_tenant) {
    add(of.read_bytes, tenant, "get", "grpc");
    add(of.write_bytes, tenant, "put", "grpc");
  }
}

void CollectPages(Snapshot s, Out out) {
  for (const auto& [pool, bytes] : s.page_bytes) out.Add(bytes, {{"pool", pool}});
}

void CollectEvictions(Snapshot s, Out out) {
  out.Add(s.cache.evicted_blocks, {{"tier", "host"}, {"reason", "capacity"}});
  out.Add(s.cache.reclaimed_blocks, {{"tier", "host"}, {"reason", "reclaim"}});
  out.Add(s.cache.invalidated_blocks, {{"tier", "host"}, {"reason", "invalidate"}});
}

void CollectPuts(Snapshot s, Out out) {
  for (size_t i = 0; i < std::size(s.cache.put_blocks); ++i) {
    out.Add(s.cache.put_blocks[i],
            {{"result", std::string(PutResultName(static_cast<PutResult>(i)))}});
  }
}

void CollectSessionEnds(Snapshot s, Out out) {
  for (size_t i = 0; i < kSessionEnds; ++i) {
    out.Add(s.local.session_ends[i],
            {{"how", std::string(SessionEndName(static_cast<SessionEnd>(i)))}});
  }
}

void CollectRefusals(Snapshot s, Out out) {
  for (size_t i = 0; i < kRefusals; ++i) {
    out.Add(s.local.refusals[i], {{"reason", std::string(RefusalName(static_cast<Refusal>(i)))}});
  }
}

template <typename Fn>
void ForEachRequestType(Snapshot s, Fn fn) {
  const std::string_view unknown = RequestTypeName(0);
  for (size_t type = 1; type < kRequestTypes; ++type) {
    const std::string_view name = RequestTypeName(type);
    if (name != unknown) fn(std::string(name), s.local.requests[type]);
  }
}

void CollectRequests(Snapshot s, Out out) {
  ForEachRequestType(s, [&](const std::string& type, const RequestStats& stats) {
    out.Add(stats.ok, {{"type", type}, {"result", "ok"}});
    out.Add(stats.failed, {{"type", type}, {"result", "failed"}});
  });
}

void CollectRequestSeconds(Snapshot s, Out out) {
  ForEachRequestType(s, [&](const std::string& type, const RequestStats& stats) {
    out.AddLatency(stats, {{"type", type}});
  });
}

void CollectRpc(Snapshot s, Out out) {
  if (!s.rpc.has_value()) return;
  for (size_t method = 0; method < kRpcMethods; ++method) {
    for (size_t code = 0; code < kRpcCodes; ++code) {
      const uint64_t calls = s.rpc->calls[method][code];
      if (calls == 0 && code != 0) continue;  // 17 codes a method, most never seen
      out.Add(calls, {{"method", std::string(RpcMethodName(static_cast<RpcMethod>(method)))},
                      {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}});
    }
  }
}

void CollectAuth(Snapshot s, Out out) {
  if (!s.rpc.has_value()) return;
  for (size_t i = 0; i < kAuthFaults; ++i) {
    out.Add(s.rpc->auth.failures[i],
            {{"reason", std::string(AuthFaultName(static_cast<AuthFault>(i)))}});
  }
}

constexpr MetricType kCounter = MetricType::Counter;
constexpr MetricType kGauge = MetricType::Gauge;

const Metric kMetrics[] = {
    {"kvarve_build_info", kGauge, "version", "Always 1.",
     [](Snapshot s, Out out) {
       out.Add(1.0, {{"version", s.version}});
     }},
    {"kvarve_start_time_seconds", kGauge, "", "When the daemon started, in seconds since 1970.",
     [](Snapshot s, Out out) { out.Add(s.start_seconds); }},

    {"kvarve_lookup_requests_total", kCounter, "", "Lookups of a chain of keys, from every client.",
     [](Snapshot s, Out out) { out.Add(s.cache.lookups); }},
    {"kvarve_lookup_keys_total", kCounter, "", "Keys in those lookups.",
     [](Snapshot s, Out out) { out.Add(s.cache.lookup_keys); }},
    {"kvarve_hit_blocks_total", kCounter, "tier", "Blocks that clients asked to read and got.",
     [](Snapshot s, Out out) {
       out.Add(s.cache.hit_blocks, {{"tier", "host"}});
     }},
    {"kvarve_miss_blocks_total", kCounter, "reason",
     "Blocks that clients asked to read and did not get.",
     [](Snapshot s, Out out) {
       out.Add(s.cache.miss_blocks, {{"reason", "absent"}});
     }},
    {"kvarve_hit_bytes_total", kCounter, "tier", "Bytes of the blocks read.",
     [](Snapshot s, Out out) {
       out.Add(s.cache.hit_bytes, {{"tier", "host"}});
     }},
    {"kvarve_get_bytes_total", kCounter, "transport",
     "Bytes read: by same-host clients local_map in place, local_copy through staging; by remote "
     "ones grpc, counted when a run ends.",
     [](Snapshot s, Out out) {
       if (s.rpc.has_value()) out.Add(s.rpc->read_bytes, {{"transport", "grpc"}});
       out.Add(s.local.granted_bytes, {{"transport", "local_map"}});
       out.Add(s.local.read_bytes, {{"transport", "local_copy"}});
     }},
    {"kvarve_put_blocks_total", kCounter, "result",
     "Blocks that clients put, by what became of them.", CollectPuts},
    {"kvarve_put_bytes_total", kCounter, "", "Bytes stored.",
     [](Snapshot s, Out out) { out.Add(s.cache.put_bytes); }},
    {"kvarve_put_conflicts_total", kCounter, "",
     "Puts of a block that was there with other bytes. Normal: KV is not bitwise deterministic, "
     "and the first stays.",
     [](Snapshot s, Out out) { out.Add(s.cache.put_conflicts); }},

    {"kvarve_arena_capacity_bytes", kGauge, "", "Most memory that blocks may take.",
     [](Snapshot s, Out out) { out.Add(s.cache.arena.capacity_bytes); }},
    {"kvarve_arena_bytes", kGauge, "pool, state",
     "Memory taken from the host: resident holds blocks, free does not. A pool is a tenant's.",
     CollectArena},
    {"kvarve_arena_draining_bytes", kGauge, "", "Memory given back that some client still maps.",
     [](Snapshot s, Out out) { out.Add(s.cache.arena.draining_bytes); }},
    {"kvarve_arena_wasted_bytes", kGauge, "", "Ends of extents that no block fits in.",
     [](Snapshot s, Out out) { out.Add(s.cache.arena.wasted_bytes); }},
    {"kvarve_arena_page_size_bytes", kGauge, "pool",
     "Page size of what was made present last in the pool's newest chunk: 2097152 with huge pages.",
     CollectPages},
    {"kvarve_evicted_blocks_total", kCounter, "tier, reason",
     "Blocks that left: capacity to make room or after a resize, reclaim to free a whole extent, "
     "invalidate on request.",
     CollectEvictions},
    {"kvarve_corruption_total", kCounter, "tier, cause",
     "Blocks whose bytes did not match their checksum; removed.",
     [](Snapshot s, Out out) {
       out.Add(s.cache.corrupt_blocks, {{"tier", "host"}, {"cause", "checksum"}});
     }},
    {"kvarve_index_entries", kGauge, "", "Blocks that lookups find.",
     [](Snapshot s, Out out) { out.Add(s.cache.index.entries); }},
    {"kvarve_index_doomed_entries", kGauge, "", "Blocks out of lookups that a lease still holds.",
     [](Snapshot s, Out out) { out.Add(s.cache.index.doomed); }},
    {"kvarve_index_bytes", kGauge, "", "Memory of the index.",
     [](Snapshot s, Out out) { out.Add(s.cache.index.memory_bytes); }},
    {"kvarve_policy_bytes", kGauge, "",
     "Memory of the eviction policy, and of who stands behind whom.",
     [](Snapshot s, Out out) { out.Add(s.cache.policy_bytes); }},
    {"kvarve_policy_info", kGauge, "policy", "1 for the eviction policy.",
     [](Snapshot s, Out out) {
       out.Add(uint64_t{1}, {{"policy", std::string(s.cache.policy)}});
     }},
    {"kvarve_policy_ghosts", kGauge, "", "Blocks that are not here and that the policy remembers.",
     [](Snapshot s, Out out) { out.Add(s.cache.learning.ghosts); }},
    {"kvarve_policy_trained", kGauge, "",
     "1 when the policy has seen enough to tell blocks apart: until then it is lru.",
     [](Snapshot s, Out out) { out.Add(uint64_t{s.cache.learning.is_trained}); }},
    {"kvarve_policy_refused_blocks_total", kCounter, "",
     "Blocks that a put offered and the policy did not take, those behind them counted too.",
     [](Snapshot s, Out out) { out.Add(s.cache.refused_blocks); }},
    {"kvarve_recompute_preferred_blocks_total", kCounter, "",
     "Blocks left out of answers to lookups: devices would bring them later than they are "
     "computed.",
     [](Snapshot s, Out out) { out.Add(s.cache.recompute_preferred_blocks); }},
    {"kvarve_saved_recompute_seconds_total", kCounter, "",
     "What computing the blocks that were read would have cost, where engines told it.",
     [](Snapshot s, Out out) {
       out.Add(static_cast<double>(s.cache.saved_recompute_micros) / 1e6);
     }},
    {"kvarve_record_accesses_total", kCounter, "", "Accesses written to the access log.",
     [](Snapshot s, Out out) {
       if (s.record.has_value()) out.Add(s.record->accesses);
     }},
    {"kvarve_record_bytes", kGauge, "", "Size of the access log.",
     [](Snapshot s, Out out) {
       if (s.record.has_value()) out.Add(s.record->bytes);
     }},
    {"kvarve_record_dropped_accesses_total", kCounter, "",
     "Accesses left out of the access log: it is full, or the disk is too slow.",
     [](Snapshot s, Out out) {
       if (s.record.has_value()) out.Add(s.record->dropped);
     }},
    {"kvarve_namespaces", kGauge, "", "Namespaces opened since the start.",
     [](Snapshot s, Out out) { out.Add(s.cache.namespaces); }},

    {"kvarve_tenant_bytes", kGauge, "tenant, tier", "Memory of a tenant's blocks.",
     CollectTenantBytes},
    {"kvarve_tenant_entries", kGauge, "tenant", "A tenant's blocks, those being put included.",
     CollectOfTenants<&PoolStats::entries>},
    {"kvarve_tenant_leased_bytes", kGauge, "tenant",
     "Bytes that a tenant's clients have under lease.", CollectOfTenants<&PoolStats::leased_bytes>},
    {"kvarve_tenant_sessions", kGauge, "tenant", "A tenant's same-host clients connected.",
     CollectTenantSessions},
    {"kvarve_tenant_rpc_connections", kGauge, "tenant",
     "A tenant's TCP connections to the gRPC server.",
     [](Snapshot s, Out out) {
       if (!s.rpc.has_value()) return;
       for (const auto& [tenant, count] : s.rpc->connections.of_tenants) {
         out.Add(count, {{"tenant", tenant}});
       }
     }},
    {"kvarve_tenant_quota", kGauge, "tenant, resource, limit",
     "What a tenant may have: floor and ceiling where they are set, and its share of the host tier "
     "that others cannot take.",
     CollectTenantQuotas},
    {"kvarve_tenant_quota_refused_blocks_total", kCounter, "tenant, resource",
     "Blocks not put, or not leased, because a tenant's quota of the resource was used up.",
     CollectQuotaRefusals},
    {"kvarve_tenant_lookup_keys_total", kCounter, "tenant, result", "Keys that a tenant looked up.",
     CollectTenantKeys},
    {"kvarve_tenant_hit_bytes_total", kCounter, "tenant", "Bytes of the blocks that a tenant read.",
     CollectOfTenants<&PoolStats::hit_bytes>},
    {"kvarve_tenant_put_bytes_total", kCounter, "tenant", "Bytes that a tenant stored.",
     CollectOfTenants<&PoolStats::stored_bytes>},
    {"kvarve_tenant_requests_total", kCounter, "tenant, transport, result",
     "A tenant's requests: local on the same-host socket, grpc of callers who were let in.",
     CollectTenantRequests},
    {"kvarve_tenant_transport_bytes_total", kCounter, "tenant, transport, direction",
     "Bytes of blocks that a tenant got (local_map in place, local_copy through staging, grpc) and "
     "put (local_copy: those stored; grpc: those sent, counted when a run ends).",
     CollectTenantTransportBytes},
    {"kvarve_tenant_evicted_blocks_total", kCounter, "tenant",
     "A tenant's blocks that left to make room.", CollectOfTenants<&PoolStats::evicted_blocks>},

    {"kvarve_leases", kGauge, "", "Leases and holds that clients have.",
     [](Snapshot s, Out out) { out.Add(s.cache.leases); }},
    {"kvarve_leased_bytes", kGauge, "", "Bytes under lease, quarantined ones included.",
     [](Snapshot s, Out out) { out.Add(s.cache.leased_bytes); }},
    {"kvarve_lease_quarantine_bytes", kGauge, "",
     "Bytes under lease of clients that are gone but whose processes may still read.",
     [](Snapshot s, Out out) { out.Add(s.cache.quarantined_bytes); }},
    {"kvarve_lease_cap_refusals_total", kCounter, "",
     "Reads in place refused because of a lease cap; copies still work.",
     [](Snapshot s, Out out) { out.Add(s.cache.lease_cap_refusals); }},
    {"kvarve_lease_unknown_releases_total", kCounter, "",
     "Releases of a lease that the client does not have.",
     [](Snapshot s, Out out) { out.Add(s.cache.releases_unknown); }},
    {"kvarve_holds_expired_total", kCounter, "", "Holds of lookups that ended by time.",
     [](Snapshot s, Out out) { out.Add(s.cache.holds_expired); }},

    {"kvarve_sessions", kGauge, "", "Same-host clients connected.",
     [](Snapshot s, Out out) { out.Add(s.local.sessions); }},
    {"kvarve_ended_sessions", kGauge, "", "Sessions without a goodbye whose process has not ended.",
     [](Snapshot s, Out out) { out.Add(s.local.ended_sessions); }},
    {"kvarve_sessions_opened_total", kCounter, "", "Sessions opened.",
     [](Snapshot s, Out out) { out.Add(s.local.sessions_opened); }},
    {"kvarve_session_deaths_total", kCounter, "how", "Sessions ended, by how.", CollectSessionEnds},
    {"kvarve_connections_refused_total", kCounter, "reason", "Connections refused, by why.",
     CollectRefusals},
    {"kvarve_local_requests_total", kCounter, "type, result", "Requests on the same-host socket.",
     CollectRequests},
    {"kvarve_local_request_seconds", MetricType::Histogram, "type",
     "Time that the daemon took for them.", CollectRequestSeconds},
    {"kvarve_malformed_messages_total", kCounter, "", "Messages that break the protocol.",
     [](Snapshot s, Out out) { out.Add(s.local.malformed); }},
    {"kvarve_slow_requests_total", kCounter, "", "Requests that took longer than log.slow_request.",
     [](Snapshot s, Out out) { out.Add(s.local.slow_requests); }},
    {"kvarve_staging_bytes", kGauge, "", "Memory through which clients put, of all sessions.",
     [](Snapshot s, Out out) { out.Add(s.local.staging_bytes); }},

    {"kvarve_rpc_requests_total", kCounter, "method, code",
     "gRPC calls; absent when the server is off.", CollectRpc},
    {"kvarve_rpc_streams", kGauge, "", "Reads, writes and watches of remote clients under way.",
     [](Snapshot s, Out out) {
       if (s.rpc.has_value()) out.Add(s.rpc->streams.open);
     }},
    {"kvarve_rpc_connections", kGauge, "", "TCP connections to the gRPC server.",
     [](Snapshot s, Out out) {
       if (s.rpc.has_value()) out.Add(s.rpc->connections.open);
     }},
    {"kvarve_rpc_connections_ended_total", kCounter, "reason",
     "TCP connections that the gRPC server ended: silent ones (rpc.greeting), ones pushed out by a "
     "newer one and refused ones (rpc.max_connections).",
     [](Snapshot s, Out out) {
       if (!s.rpc.has_value()) return;
       out.Add(s.rpc->connections.silent, {{"reason", "silent"}});
       out.Add(s.rpc->connections.pushed_out, {{"reason", "pushed_out"}});
       out.Add(s.rpc->connections.refused, {{"reason", "refused"}});
     }},
    {"kvarve_rpc_tls_handshake_failures_total", kCounter, "",
     "TLS handshakes that failed, on the port of administration too: a certificate of another "
     "authority, none, plaintext. The log says why. A peer that goes away by itself, as one that "
     "does "
     "not trust the daemon, is not counted.",
     [](Snapshot s, Out out) {
       if (s.rpc.has_value()) out.Add(s.rpc->tls_handshake_failures);
     }},
    {"kvarve_rpc_calls_over_quota_total", kCounter, "",
     "gRPC calls on connections that their tenant may not have (connections in tenant.quotas).",
     [](Snapshot s, Out out) {
       if (s.rpc.has_value()) out.Add(s.rpc->connections.over_quota);
     }},
    {"kvarve_rpc_streams_ended_total", kCounter, "reason",
     "Streams of remote clients that the daemon did not serve: stalled ones (rpc.stall), unwelcome "
     "ones (revoked or expired meanwhile), refused ones (rpc.max_streams), writes shed for want of "
     "room (rpc.write_bytes).",
     [](Snapshot s, Out out) {
       if (!s.rpc.has_value()) return;
       out.Add(s.rpc->streams.stalled, {{"reason", "stalled"}});
       out.Add(s.rpc->streams.unwelcome, {{"reason", "unwelcome"}});
       out.Add(s.rpc->streams.refused, {{"reason", "refused"}});
       out.Add(s.rpc->streams.shed, {{"reason", "shed"}});
     }},
    {"kvarve_rpc_slow_requests_total", kCounter, "",
     "gRPC calls that took longer than log.slow_request, runs by their peer's time too.",
     [](Snapshot s, Out out) {
       if (s.rpc.has_value()) out.Add(s.rpc->slow_calls);
     }},
    {"kvarve_rpc_put_bytes_total", kCounter, "",
     "Bytes of blocks that remote clients sent, counted when a run ends.",
     [](Snapshot s, Out out) {
       if (s.rpc.has_value()) out.Add(s.rpc->write_bytes);
     }},
    {"kvarve_auth_failures_total", kCounter, "reason",
     "gRPC calls refused because of who makes them, by why.", CollectAuth},
    {"kvarve_auth_tokens_verified_total", kCounter, "",
     "Signatures of tokens checked; tokens seen within a minute are remembered.",
     [](Snapshot s, Out out) {
       if (s.rpc.has_value()) out.Add(s.rpc->auth.tokens_verified);
     }},
    {"kvarve_auth_reloads_total", kCounter, "result",
     "Files of keys, tokens and revocations read again; failed leaves the old one in force.",
     [](Snapshot s, Out out) {
       if (!s.rpc.has_value()) return;
       out.Add(s.rpc->auth.reloads, {{"result", "ok"}});
       out.Add(s.rpc->auth.reload_failures, {{"result", "failed"}});
     }},
};

std::vector<const Metric*> AllMetrics() {
  std::vector<const Metric*> rows;
  for (const Metric& metric : kMetrics) rows.push_back(&metric);
  for (const Metric& metric : DeviceMetrics()) rows.push_back(&metric);
  return rows;
}

std::string_view TypeText(MetricType type) {
  if (type == MetricType::Counter) return "counter";
  return type == MetricType::Histogram ? "histogram" : "gauge";
}

}  // namespace

std::string ExposeMetrics(const MetricsSnapshot& snapshot) {
  std::vector<prometheus::MetricFamily> families;
  for (const Metric* row : AllMetrics()) {
    const Metric& metric = *row;
    prometheus::MetricFamily family;
    family.name = metric.name;
    family.help = metric.help;
    family.type = metric.type;
    Samples samples(&family);
    metric.collect(snapshot, samples);
    if (!family.metric.empty()) families.push_back(std::move(family));
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

std::string MetricsMarkdown() {
  std::string text =
      "# Metrics of kvarved\n\nThis page is made from the table of metrics: `kvarved "
      "--print-metrics > "
      "docs/metrics.md`. They are served at\n`http://METRICS.LISTEN/metrics`; counters start at 0 "
      "with the daemon.\n\n"
      "| metric | type | labels | what it says |\n|---|---|---|---|\n";
  for (const Metric* row : AllMetrics()) {
    const Metric& metric = *row;
    text += absl::StrFormat("| `%s` | %s | %s | %s |\n", metric.name, TypeText(metric.type),
                            metric.labels, metric.help);
  }
  return text;
}

}  // namespace kvarve
