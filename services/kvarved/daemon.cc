#include "services/kvarved/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "services/kvarved/access_recorder.h"
#include "services/kvarved/admin.h"
#include "services/kvarved/devices.h"
#include "services/kvarved/policy_file.h"
#include "services/kvarved/status_history.h"
#include "services/kvarved/status_json.h"
#include "services/local/local_server.h"
#include "services/metrics/exposition.h"
#include "services/metrics/metrics_server.h"
#include "services/rpc/admin_server.h"
#include "services/rpc/block_store.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr int64_t kRpcGraceNanos = 1'000'000'000;

// Page size of each pool's newest chunk, by the tenant's name.
std::vector<std::pair<std::string, uint64_t>> PageBytes(const Cache& cache) {
  std::map<PoolId, std::string> pools;
  for (NamespaceInfo& info : cache.Namespaces()) pools.emplace(info.pool, std::move(info.tenant));
  std::vector<std::pair<std::string, uint64_t>> result;
  for (auto& [pool, tenant] : pools) {
    const std::vector<ChunkInfo> chunks = cache.Chunks(pool);
    if (!chunks.empty()) result.emplace_back(std::move(tenant), chunks.back().page_bytes);
  }
  return result;
}

// Null: nothing is recorded.
absl::StatusOr<std::unique_ptr<AccessRecorder>> RecorderOf(DaemonOptions* options) {
  if (options->record_path.empty()) return nullptr;
  auto recorder = AccessRecorder::Create(options->record_path, options->record_bytes_max);
  if (recorder.status().code() == absl::StatusCode::kAlreadyExists) {
    KvLog(LogLevel::kWarning, "nothing is recorded", {{"reason", recorder.status().ToString()}});
    return nullptr;  // a restart finds the file of the run before
  }
  KV_RETURN_IF_ERROR(recorder.status());
  options->cache.on_access = [to = recorder->get()](const CacheAccess& access) {
    to->Record(access);
  };
  return recorder;
}

}  // namespace

struct Daemon::Rep {
  DaemonOptions options;
  double start_seconds = 0;
  std::atomic<bool> is_ready{false}, is_draining{false};
  bool is_flushed = false;
  std::unique_ptr<Catalogue> catalogue;
  std::unique_ptr<AccessRecorder> recorder;
  std::unique_ptr<Cache> cache;
  std::unique_ptr<PolicyFile> policy_file;
  std::unique_ptr<Admin> admin;
  std::unique_ptr<LocalServer> local;
  // Requests of administration may come before the parts below are written: they see none of them
  // then.
  std::atomic<const LocalServer*> counted{nullptr};
  std::atomic<RpcServer*> serving{nullptr};
  std::atomic<uint16_t> metrics_port{0}, rpc_port{0};
  SlowRequests slow;
  std::unique_ptr<StatusHistory> history;
  std::unique_ptr<BlockStore> store;
  std::unique_ptr<RpcServer> rpc;
  std::unique_ptr<MetricsServer> metrics;
  std::unique_ptr<AdminServer> admin_server, admin_port;

  AdminActions Actions() {
    AdminActions actions;
    actions.drain = [this](bool draining) { return Drain(draining); };
    actions.resize = [this](uint64_t bytes) -> absl::StatusOr<uint64_t> {
      const std::string request = absl::StrFormat("{\"op\":\"resize\",\"capacity\":%d}", bytes);
      KV_RETURN_IF_ERROR(admin->Handle(request, ::geteuid()).status());
      return cache->Stats().arena.capacity_bytes;
    };
    actions.evict = [this](uint64_t bytes, std::string_view tenant) {
      return cache->Evict(bytes, tenant);
    };
    actions.config = [this] { return options.config_yaml; };
    actions.set_quota = [this](const std::string& tenant, const std::string& quota) {
      return admin->SetQuota(tenant, quota, ::geteuid());
    };
    actions.ask = [this](const std::string& json) { return admin->Handle(json, ::geteuid()); };
    return actions;
  }
  uint64_t Drain(bool draining) {
    is_draining.store(draining);
    RpcServer* const server = serving.load();
    return server != nullptr ? server->SetDraining(draining) : 0;
  }
  LocalStats PlaneStats() const {
    const LocalServer* const server = counted.load();
    return server != nullptr ? server->Stats() : LocalStats();
  }
  // It serves at once; what devices have is found as they are recovered.
  std::string ReadyText() const {
    const CacheStats stats = cache->Stats();
    if (!stats.devices.has_value()) return "ok";
    const auto& devices = stats.devices->devices;
    const auto left = std::ranges::count(devices, DeviceState::kRecovering, &DeviceStats::state);
    if (left == 0) return "ok";
    return absl::StrFormat("ok; %d of %d devices are being recovered", left, devices.size());
  }
  LiveState Live() const { return {PlaneStats(), metrics_port.load(), rpc_port.load()}; }
  StatusSample Sample() const {
    const CacheStats stats = cache->Stats();
    StatusSample sample;
    sample.unix_seconds = UnixSecondsNow();
    sample.lookup_keys = stats.lookup_keys;
    sample.found_keys = stats.lookup_hit_keys;
    sample.hit_blocks = stats.hit_blocks;
    sample.miss_blocks = stats.miss_blocks;
    sample.hit_bytes = stats.hit_bytes;
    sample.saved_seconds = static_cast<double>(stats.saved_recompute_micros) / 1e6;
    sample.put_bytes = stats.put_bytes;
    sample.used_bytes = stats.arena.used_bytes;
    if (stats.devices.has_value()) sample.nvme_bytes = stats.devices->bytes;
    return sample;
  }
  MetricsSnapshot Snapshot() const {
    MetricsSnapshot snapshot;
    snapshot.version = options.version;
    snapshot.start_seconds = start_seconds;
    snapshot.cache = cache->Stats();
    snapshot.page_bytes = PageBytes(*cache);
    snapshot.local = PlaneStats();
    if (rpc != nullptr) snapshot.rpc = rpc->Stats();
    if (recorder != nullptr) {
      const RecordStats stats = recorder->Stats();
      snapshot.record = {stats.accesses, stats.bytes, stats.dropped};
    }
    return snapshot;
  }
};

Daemon::Daemon(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(DaemonOptions options) {
  auto owned = std::make_unique<Rep>();
  Rep* const rep = owned.get();
  rep->options = std::move(options);
  rep->start_seconds = UnixSecondsNow();
  std::unique_ptr<Daemon> daemon(
      new Daemon(std::move(owned)));  // stops what was started, whatever fails

  rep->catalogue = OpenCatalogueOf(rep->options.nvme);
  rep->options.cache.devices.catalogue = rep->catalogue.get();
  KV_ASSIGN_OR_RETURN(rep->recorder, RecorderOf(&rep->options));
  KV_ASSIGN_OR_RETURN(rep->cache, Cache::Create(rep->options.cache));
  rep->admin = std::make_unique<Admin>(
      &rep->options, rep->cache.get(), [rep] { return rep->Live(); },
      [rep](bool draining) { return rep->Drain(draining); });
  rep->options.local.admin = [admin = rep->admin.get()](std::string_view json, uid_t uid) {
    return admin->Handle(json, uid);
  };
  rep->options.local.on_slow_request = [rep](const SlowRequest& request) {
    rep->slow.Add(request);
  };
  // Before anybody puts: a block that comes earlier is on no device.
  const absl::Status devices = AddDevicesOf(rep->options.nvme, rep->cache.get());
  // First of all that listens: its lock decides which of two daemons serves. Of the second the
  // devices were in use, too, and this says more.
  KV_ASSIGN_OR_RETURN(rep->local, LocalServer::Start(rep->options.local, rep->cache.get()));
  KV_RETURN_IF_ERROR(devices);
  if (!rep->options.policy_file.empty()) {
    rep->policy_file = std::make_unique<PolicyFile>(rep->options.policy_file, rep->cache.get());
  }
  rep->counted.store(rep->local.get());
  if (rep->options.rpc.has_value()) {
    BlockStoreOptions store;
    store.read_bytes_max = rep->options.rpc_read_bytes;
    store.pin_bytes_max = rep->options.rpc_pin_bytes;
    store.complete = [local = rep->local.get()](const std::string& tenant,
                                                const NamespaceDescriptor& descriptor,
                                                const NamespaceDigest& digest) {
      return local->Complete(tenant, descriptor, digest);
    };
    rep->store = BlockStoreOf(rep->cache.get(), std::move(store));
    KV_ASSIGN_OR_RETURN(rep->rpc, RpcServer::Start(*rep->options.rpc, rep->store.get()));
    rep->rpc_port.store(rep->rpc->port());
    rep->serving.store(rep->rpc.get());
  }
  if (!rep->options.metrics.off()) {
    MetricsServerOptions metrics;
    metrics.listen = rep->options.metrics;
    metrics.metrics = [rep] { return ExposeMetrics(rep->Snapshot()); };
    rep->history = std::make_unique<StatusHistory>([rep] { return rep->Sample(); });
    metrics.status_json = [rep] {
      return StatusPageJson(rep->admin.get(), *rep->history, rep->slow, rep->options.settings);
    };
    metrics.ready = [rep]() -> absl::StatusOr<std::string> {
      if (!rep->is_ready.load()) return absl::UnavailableError("starts or stops");
      if (rep->is_draining.load()) return absl::UnavailableError("drains");
      return rep->ReadyText();
    };
    KV_ASSIGN_OR_RETURN(rep->metrics, MetricsServer::Start(std::move(metrics)));
    rep->metrics_port.store(rep->metrics->port());
  }
  if (!rep->options.admin_socket.empty()) {
    KV_ASSIGN_OR_RETURN(rep->admin_server,
                        AdminServer::Start(rep->options.admin_socket, rep->Actions()));
  }
  if (!rep->options.admin_listen.off()) {
    KV_ASSIGN_OR_RETURN(rep->admin_port,
                        AdminServer::Start(rep->options.admin_listen, rep->options.rpc->transport,
                                           rep->rpc->auth(), rep->Actions()));
  }
  rep->is_ready.store(true);
  return daemon;
}

Daemon::~Daemon() { Stop(); }

uint64_t Daemon::incarnation() const { return rep_->cache->incarnation(); }
uint16_t Daemon::metrics_port() const { return rep_->metrics_port.load(); }
uint16_t Daemon::rpc_port() const { return rep_->rpc_port.load(); }

void Daemon::Stop() {
  rep_->is_ready.store(false);
  rep_->admin_server.reset();
  rep_->admin_port.reset();
  if (rep_->rpc != nullptr) rep_->rpc->Stop(kRpcGraceNanos);
  if (rep_->local != nullptr) rep_->local->Stop();
  if (rep_->cache != nullptr && !std::exchange(rep_->is_flushed, true)) {
    rep_->cache->FlushDevices(rep_->options.nvme.stop_nanos);
  }
  rep_->policy_file.reset();
  if (rep_->metrics != nullptr) rep_->metrics->Stop();
  rep_->history.reset();
}

}  // namespace kvarve
