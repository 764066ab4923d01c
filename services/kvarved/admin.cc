#include "services/kvarved/admin.h"

#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "client/identity/identity.h"
#include "services/config/settings.h"
#include "services/kvarved/admin_devices.h"
#include "services/kvarved/admin_erase.h"
#include "services/kvarved/devices.h"
#include "services/kvarved/quotas.h"
#include "storage/arena/host_memory.h"
#include "storage/base/abseil.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

using Json = nlohmann::ordered_json;

absl::Status OnlyFields(const Json& request, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : request.items()) {
    if (name != "op" && std::find(known.begin(), known.end(), name) == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("unknown field \"%s\"", name.substr(0, 64)));
    }
  }
  return absl::OkStatus();
}

// Text out of namespaces is what clients sent: whatever is not UTF-8 is replaced.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json NamespaceJson(const NamespaceInfo& info) {
  return {{"ns", ToHex(info.id.bytes)},
          {"tenant", info.tenant},
          {"model", info.model},
          {"block_bytes", info.block_bytes},
          {"key_bytes", info.key_bytes}};
}

Json StatsJson(const CacheStats& cache, const LocalStats& local) {
  Json puts = Json::object();
  for (size_t i = 0; i < std::size(cache.put_blocks); ++i) {
    puts[std::string(PutResultName(static_cast<PutResult>(i)))] = cache.put_blocks[i];
  }
  Json requests = Json::object();
  for (size_t type = 1; type < kRequestTypes; ++type) {
    const RequestStats& stats = local.requests[type];
    const uint64_t count = stats.ok + stats.failed;
    if (count == 0) continue;
    requests[std::string(RequestTypeName(type))] = {
        {"ok", stats.ok}, {"failed", stats.failed}, {"mean_us", stats.total_micros / count}};
  }
  Json json = {{"lookups", cache.lookups},
               {"lookup_keys", cache.lookup_keys},
               {"lookup_hit_keys", cache.lookup_hit_keys},
               {"acquires", cache.acquires},
               {"hit_blocks", cache.hit_blocks},
               {"miss_blocks", cache.miss_blocks},
               {"hit_bytes", cache.hit_bytes},
               {"put_blocks", std::move(puts)},
               {"put_bytes", cache.put_bytes},
               {"put_conflicts", cache.put_conflicts},
               {"evicted_blocks", cache.evicted_blocks},
               {"reclaimed_blocks", cache.reclaimed_blocks},
               {"invalidated_blocks", cache.invalidated_blocks},
               {"corrupt_blocks", cache.corrupt_blocks},
               {"lease_cap_refusals", cache.lease_cap_refusals},
               {"holds_expired", cache.holds_expired},
               {"granted_bytes", local.granted_bytes},
               {"copied_bytes", local.read_bytes},
               {"sessions_opened", local.sessions_opened},
               {"malformed_messages", local.malformed},
               {"slow_requests", local.slow_requests},
               {"refused_blocks", cache.refused_blocks},
               {"recompute_preferred_blocks", cache.recompute_preferred_blocks},
               {"saved_recompute_seconds", static_cast<double>(cache.saved_recompute_micros) / 1e6},
               {"requests", std::move(requests)}};
  if (cache.devices.has_value()) json["nvme"] = DeviceCountersJson(*cache.devices);
  return json;
}

absl::StatusOr<uint64_t> WantedBytes(const Json& capacity, const HostMemory& host,
                                     uint64_t held_bytes) {
  if (capacity.is_number_unsigned()) return capacity.get<uint64_t>();
  if (!capacity.is_string()) {
    return absl::InvalidArgumentError(
        "\"capacity\" must be bytes, or a text like \"2GiB\" or \"50%\"");
  }
  KV_ASSIGN_OR_RETURN(
      const SettingValue value,
      ParseSetting(*FindSetting("arena.capacity_bytes"), capacity.get_ref<const std::string&>()));
  return std::get<Capacity>(value).Of(host.BudgetBytes(held_bytes));
}

// Everything that one request needs.
struct Call {
  const DaemonOptions& options;
  Cache& cache;
  const Json& request;
  uid_t uid;
};

// The address that is served: a configured port 0 became some port.
std::string Served(ListenAddress address, uint16_t port) {
  if (port != 0) address.port = port;
  return address.ToString();
}

Json StatusJson(const Call& call, const LiveState& live, int64_t uptime_nanos) {
  const LocalStats& local = live.local;
  const CacheStats stats = call.cache.Stats();
  Json json = {
      {"version", call.options.version},
      {"incarnation", absl::StrFormat("%016x", call.cache.incarnation())},
      {"pid", ::getpid()},
      {"uptime_seconds", uptime_nanos / 1'000'000'000},
      {"socket", call.options.local.socket_path},
      {"metrics", Served(call.options.metrics, live.metrics_port)},
      {"rpc",
       call.options.rpc.has_value() ? Served(call.options.rpc->listen, live.rpc_port) : "off"},
      {"capacity_bytes", stats.arena.capacity_bytes},
      {"chunk_bytes", stats.arena.chunk_bytes},
      {"used_bytes", stats.arena.used_bytes},
      {"draining_bytes", stats.arena.draining_bytes},
      {"leaving_bytes",
       stats.arena.chunk_bytes - std::min(stats.arena.chunk_bytes, stats.arena.capacity_bytes)},
      {"blocks", stats.index.entries},
      {"index_bytes", stats.index.memory_bytes},
      {"namespaces", stats.namespaces},
      {"leases", stats.leases},
      {"leased_bytes", stats.leased_bytes},
      {"quarantined_bytes", stats.quarantined_bytes},
      {"sessions", local.sessions},
      {"ended_sessions", local.ended_sessions},
      {"staging_bytes", local.staging_bytes},
      {"limits",
       {{"sessions", call.options.local.max_sessions},
        {"sessions_per_uid", call.options.local.max_sessions_per_uid},
        {"staging_session_bytes", call.options.local.staging_bytes_per_session},
        {"staging_process_bytes", call.options.local.staging_bytes_per_process},
        {"staging_total_bytes", call.options.local.staging_bytes_total}}}};
  if (const absl::StatusOr<HostMemory> host = ReadHostMemory(); host.ok()) {
    json["host_budget_bytes"] = host->BudgetBytes(stats.arena.chunk_bytes) +
                                (call.options.cache.arena.huge_pages ? host->free_huge_bytes : 0);
  }
  if (stats.devices.has_value()) json["nvme"] = DeviceStatusJson(*stats.devices);
  return json;
}

// Where a page of a list begins.
absl::StatusOr<size_t> OffsetOf(const Json& request) {
  const auto field = request.find("offset");
  if (field == request.end()) return size_t{0};
  if (!field->is_number_unsigned()) {
    return absl::InvalidArgumentError("\"offset\" must be a number");
  }
  return field->get<size_t>();
}

absl::StatusOr<Json> Namespaces(const Call& call) {
  KV_RETURN_IF_ERROR(OnlyFields(call.request, {"offset"}));
  KV_ASSIGN_OR_RETURN(const size_t offset, OffsetOf(call.request));
  const std::vector<NamespaceInfo> all = call.cache.Namespaces();
  Json list = Json::array();
  size_t bytes = 0;
  for (size_t i = offset; i < all.size() && list.size() < kNamespacesPerAnswer; ++i) {
    Json ns = NamespaceJson(all[i]);
    bytes += Dump(ns).size();
    if (bytes > kNamespaceBytesPerAnswer && !list.empty()) break;
    list.push_back(std::move(ns));
  }
  return Json{{"total", all.size()}, {"namespaces", std::move(list)}};
}

absl::StatusOr<Json> Resize(const Call& call) {
  KV_RETURN_IF_ERROR(OnlyFields(call.request, {"capacity"}));
  const auto capacity = call.request.find("capacity");
  if (capacity == call.request.end()) return absl::InvalidArgumentError("\"capacity\" is missing");
  const ArenaStats before = call.cache.Stats().arena;
  KV_ASSIGN_OR_RETURN(const HostMemory host, ReadHostMemory());
  KV_ASSIGN_OR_RETURN(uint64_t bytes, WantedBytes(*capacity, host, before.chunk_bytes));
  KV_RETURN_IF_ERROR(
      CheckArenaBytes(host, bytes, before.chunk_bytes, call.options.cache.arena.huge_pages));
  bytes = bytes / kExtentBytes * kExtentBytes;
  KV_RETURN_IF_ERROR(call.cache.Resize(bytes));
  const ArenaStats after = call.cache.Stats().arena;
  KvLog(LogLevel::kInfo, "resized",
        {{"uid", absl::StrFormat("%d", call.uid)},
         {"from", FormatBytes(before.capacity_bytes)},
         {"to", FormatBytes(after.capacity_bytes)}});
  return Json{{"before_bytes", before.capacity_bytes},
              {"capacity_bytes", after.capacity_bytes},
              {"chunk_bytes", after.chunk_bytes},
              {"draining_bytes", after.draining_bytes}};
}

Json TenantJson(const PoolStats& of) {
  Json refused = Json::object();
  for (size_t i = 0; i < kResources; ++i) {
    if (of.quota_refusals[i] == 0) continue;
    refused[std::string(ResourceName(static_cast<Resource>(i)))] = of.quota_refusals[i];
  }
  return {{"tenant", of.tenant},
          {"quota", QuotaText(of.quota)},
          {"used_bytes", of.used_bytes},
          {"chunk_bytes", of.chunk_bytes},
          {"share_bytes", of.share_bytes},
          {"entries", of.entries},
          {"leased_bytes", of.leased_bytes},
          {"lookup_keys", of.lookup_keys},
          {"hit_keys", of.lookup_hit_keys},
          {"hit_bytes", of.hit_bytes},
          {"put_bytes", of.stored_bytes},
          {"evicted_blocks", of.evicted_blocks},
          {"quota_refused_blocks", std::move(refused)}};
}

absl::StatusOr<Json> Tenants(const Call& call) {
  KV_RETURN_IF_ERROR(OnlyFields(call.request, {"offset"}));
  KV_ASSIGN_OR_RETURN(const size_t offset, OffsetOf(call.request));
  const std::vector<PoolStats> all = call.cache.Stats().pools;
  Json list = Json::array();
  size_t bytes = 0;
  for (size_t i = offset; i < all.size(); ++i) {
    Json tenant = TenantJson(all[i]);
    bytes += Dump(tenant).size();
    if (bytes > kNamespaceBytesPerAnswer && !list.empty()) break;
    list.push_back(std::move(tenant));
  }
  return Json{{"total", all.size()}, {"tenants", std::move(list)}};
}

absl::StatusOr<std::string> SetQuotaOf(Cache& cache, const std::string& tenant,
                                       const std::string& quota, uid_t uid) {
  KV_RETURN_IF_ERROR(CheckTenantName(tenant));
  KV_ASSIGN_OR_RETURN(const TenantQuota parsed, ParseQuota(quota));
  if (parsed.of(Resource::kConnections) != QuotaRange()) {
    return absl::InvalidArgumentError(
        "connections are limited from the start on: set them in tenant.quotas");
  }
  KV_RETURN_IF_ERROR(cache.SetQuota(tenant, parsed));
  KvLog(LogLevel::kInfo, "quota changed",
        {{"uid", absl::StrFormat("%d", uid)}, {"tenant", tenant}, {"quota", QuotaText(parsed)}});
  return QuotaText(parsed);
}

absl::StatusOr<Json> Quota(const Call& call) {
  KV_RETURN_IF_ERROR(OnlyFields(call.request, {"tenant", "quota"}));
  const auto tenant = call.request.find("tenant"), quota = call.request.find("quota");
  if (tenant == call.request.end() || !tenant->is_string() || quota == call.request.end() ||
      !quota->is_string()) {
    return absl::InvalidArgumentError("\"tenant\" and \"quota\" must be texts");
  }
  const std::string name = tenant->get<std::string>();
  KV_ASSIGN_OR_RETURN(const std::string now,
                      SetQuotaOf(call.cache, name, quota->get_ref<const std::string&>(), call.uid));
  return Json{{"tenant", name}, {"quota", now}};
}

absl::StatusOr<Json> Evict(const Call& call) {
  KV_RETURN_IF_ERROR(OnlyFields(call.request, {"bytes", "tenant"}));
  const auto bytes = call.request.find("bytes"), tenant = call.request.find("tenant");
  const bool names = tenant != call.request.end();
  if (bytes == call.request.end() || (names && !tenant->is_string())) {
    return absl::InvalidArgumentError("\"bytes\" is missing, or \"tenant\" is no text");
  }
  uint64_t count = 0;
  if (bytes->is_number_unsigned()) {
    count = bytes->get<uint64_t>();
  } else if (bytes->is_string()) {
    KV_ASSIGN_OR_RETURN(count, ParseBytes(bytes->get_ref<const std::string&>()));
  } else {
    return absl::InvalidArgumentError("\"bytes\" must be bytes, or a text like \"2GiB\"");
  }
  const auto [blocks, freed] =
      call.cache.Evict(count, names ? tenant->get_ref<const std::string&>() : std::string());
  KvLog(LogLevel::kInfo, "evicted by request",
        {{"uid", absl::StrFormat("%d", call.uid)}, {"bytes", FormatBytes(freed)}});
  return Json{{"evicted_blocks", blocks}, {"evicted_bytes", freed}};
}

absl::StatusOr<Json> Drain(const Call& call, const std::function<uint64_t(bool)>& drain) {
  KV_RETURN_IF_ERROR(OnlyFields(call.request, {"on"}));
  const auto on = call.request.find("on");
  if (on == call.request.end() || !on->is_boolean()) {
    return absl::InvalidArgumentError("\"on\" must be true or false");
  }
  const uint64_t open = drain(on->get<bool>());
  KvLog(LogLevel::kInfo, on->get<bool>() ? "drains" : "serves again",
        {{"uid", absl::StrFormat("%d", call.uid)}});
  return Json{{"draining", on->get<bool>()}, {"open_streams", open}};
}

// Which namespaces an invalidation means.
absl::StatusOr<std::function<bool(const NamespaceInfo&)>> Selector(const Json& request) {
  const auto ns = request.find("ns"), model = request.find("model"), all = request.find("all");
  const auto end = request.end();
  if ((ns != end) + (model != end) + (all != end) != 1) {
    return absl::InvalidArgumentError("exactly one of \"ns\", \"model\" and \"all\" must be given");
  }
  if (all != end) {
    if (!all->is_boolean() || !all->get<bool>())
      return absl::InvalidArgumentError("\"all\" must be true");
    return [](const NamespaceInfo&) { return true; };
  }
  if (model != end) {
    if (!model->is_string()) return absl::InvalidArgumentError("\"model\" must be a text");
    return [name = model->get<std::string>()](const NamespaceInfo& info) {
      return info.model == name;
    };
  }
  if (!ns->is_string()) return absl::InvalidArgumentError("\"ns\" must be a text");
  KV_ASSIGN_OR_RETURN(const std::string bytes, FromHex(ns->get_ref<const std::string&>()));
  if (bytes.size() != sizeof(NamespaceId::bytes)) {
    return absl::InvalidArgumentError("\"ns\" must have 32 hexadecimal digits");
  }
  return [bytes](const NamespaceInfo& info) {
    return std::equal(info.id.bytes.begin(), info.id.bytes.end(),
                      reinterpret_cast<const uint8_t*>(bytes.data()));
  };
}

absl::StatusOr<Json> Invalidate(const Call& call) {
  KV_RETURN_IF_ERROR(OnlyFields(call.request, {"ns", "model", "all"}));
  KV_ASSIGN_OR_RETURN(const auto is_meant, Selector(call.request));
  uint64_t namespaces = 0, removed = 0;
  for (const NamespaceInfo& info : call.cache.Namespaces()) {
    if (!is_meant(info)) continue;
    removed += call.cache.Invalidate(info.handle);
    ++namespaces;
  }
  if (call.request.contains("all")) {
    for (const StoredNamespace& left : call.cache.StoredNamespaces()) {
      if (call.cache.FindNamespace(left.id).ok()) continue;
      KV_ASSIGN_OR_RETURN(const uint64_t blocks, call.cache.Erase(left.id));
      removed += blocks;
      ++namespaces;
    }
  }
  if (namespaces == 0 && !call.request.contains("all")) {
    return absl::NotFoundError("no such namespace here; `kvarve status --namespaces` lists them");
  }
  KvLog(LogLevel::kInfo, "invalidated",
        {{"uid", absl::StrFormat("%d", call.uid)},
         {"namespaces", absl::StrFormat("%d", namespaces)},
         {"blocks", absl::StrFormat("%d", removed)}});
  return Json{{"namespaces", namespaces}, {"removed_blocks", removed}};
}

absl::StatusOr<Json> ChangeDevices(const Call& call, bool add) {
  KV_RETURN_IF_ERROR(OnlyFields(call.request, {"path"}));
  const auto path = call.request.find("path");
  if (path == call.request.end() || !path->is_string()) {
    return absl::InvalidArgumentError("\"path\" must be a text");
  }
  const std::string name = path->get<std::string>();
  if (!name.starts_with('/')) return absl::InvalidArgumentError("the path must be absolute");
  if (add) {
    NvmeOptions nvme = call.options.nvme;
    nvme.device_bytes = 0;  // making one takes longer than anybody waits for an answer
    KV_RETURN_IF_ERROR(AddDeviceOf(nvme, name, &call.cache));
  } else {
    KV_RETURN_IF_ERROR(call.cache.RemoveDevice(name));
  }
  KvLog(LogLevel::kInfo, add ? "device added" : "device removed",
        {{"uid", absl::StrFormat("%d", call.uid)}, {"device", name}});
  return DeviceStatusJson(*call.cache.Stats().devices);
}

}  // namespace

Admin::Admin(const DaemonOptions* options, Cache* cache, std::function<LiveState()> live,
             std::function<uint64_t(bool draining)> drain)
    : options_(options),
      cache_(cache),
      live_(std::move(live)),
      drain_(std::move(drain)),
      start_nanos_(SystemClock::Get()->NowNanos()) {}

absl::StatusOr<std::string> Admin::SetQuota(const std::string& tenant, const std::string& quota,
                                            uid_t uid) {
  return SetQuotaOf(*cache_, tenant, quota, uid);
}

absl::StatusOr<std::string> Admin::Handle(std::string_view text, uid_t uid) {
  const Json request = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!request.is_object()) return absl::InvalidArgumentError("the request is not a JSON object");
  const auto op = request.find("op");
  if (op == request.end() || !op->is_string())
    return absl::InvalidArgumentError("\"op\" is missing");
  const std::string& name = op->get_ref<const std::string&>();
  const Call call{*options_, *cache_, request, uid};
  absl::StatusOr<Json> answer = absl::InvalidArgumentError(absl::StrFormat(
      "unknown op \"%s\"; known: status, stats, namespaces, tenants, quota, resize, "
      "evict, drain, config, invalidate, erase, device_add, device_remove",
      name.substr(0, 64)));
  if (name == "status" || name == "stats") {
    KV_RETURN_IF_ERROR(OnlyFields(request, {}));
    answer = name == "stats"
                 ? StatsJson(cache_->Stats(), live_().local)
                 : StatusJson(call, live_(), SystemClock::Get()->NowNanos() - start_nanos_);
  } else if (name == "namespaces") {
    answer = Namespaces(call);
  } else if (name == "tenants") {
    answer = Tenants(call);
  } else if (name == "quota") {
    answer = Quota(call);
  } else if (name == "resize") {
    answer = Resize(call);
  } else if (name == "evict") {
    answer = Evict(call);
  } else if (name == "drain") {
    answer = Drain(call, drain_);
  } else if (name == "config") {
    KV_RETURN_IF_ERROR(OnlyFields(request, {}));
    answer = Json{{"yaml", options_->config_yaml}};
  } else if (name == "invalidate") {
    answer = Invalidate(call);
  } else if (name == "erase") {
    answer = EraseOnRequest(request, cache_, uid);
  } else if (name == "device_add" || name == "device_remove") {
    answer = ChangeDevices(call, name == "device_add");
  }
  if (!answer.ok()) return answer.status();
  return Dump(*answer);
}

}  // namespace kvarve
