#include "services/local/local_server.h"

#include <utility>
#include <vector>

#include "services/local/acceptor.h"
#include "services/local/listener.h"
#include "services/local/reaper.h"
#include "services/local/tenants.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace kvarve {

struct LocalServer::Rep {
  LocalServerOptions options;
  Cache* cache = nullptr;
  Counters counters;
  std::unique_ptr<Tenants> tenants;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Reaper> reaper;
  std::unique_ptr<Acceptor> acceptor;
};

LocalServer::LocalServer(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}

absl::StatusOr<std::unique_ptr<LocalServer>> LocalServer::Start(const LocalServerOptions& options,
                                                                Cache* cache) {
  if (options.version_min == 0 || options.version_min > options.version_max ||
      options.max_sessions == 0) {
    return absl::InvalidArgumentError("local plane: an empty range of versions, or no sessions");
  }
  KV_RETURN_IF_ERROR(CheckQuotas(options.quotas, Resource::kConnections, options.max_sessions, 1));
  auto rep = std::make_unique<Rep>();
  rep->options = options;
  rep->cache = cache;
  KV_ASSIGN_OR_RETURN(rep->tenants, Tenants::Create(options));
  const std::optional<gid_t> group = KvarveGroup();
  KV_ASSIGN_OR_RETURN(rep->listener, Listener::Bind(options.socket_path, group));
  rep->reaper = std::make_unique<Reaper>(&rep->options, cache, &rep->counters);
  KV_RETURN_IF_ERROR(rep->reaper->Start());
  const SessionContext context{rep->options, cache, rep->tenants.get(), &rep->counters,
                               rep->reaper.get()};
  std::vector<gid_t> gids;
  if (group.has_value()) gids.push_back(*group);
  rep->acceptor = std::make_unique<Acceptor>(rep->listener->fd(), context, std::move(gids));
  KV_RETURN_IF_ERROR(rep->acceptor->Start());
  KvLog(LogLevel::kInfo, "local plane serves", {{"socket", options.socket_path}});
  return std::unique_ptr<LocalServer>(new LocalServer(std::move(rep)));
}

LocalServer::~LocalServer() { Stop(); }

void LocalServer::Stop() {
  rep_->acceptor->Stop();
  rep_->reaper->Stop();
  rep_->listener.reset();
}

absl::StatusOr<NamespaceDescriptor> LocalServer::Complete(const std::string& tenant,
                                                          const NamespaceDescriptor& descriptor,
                                                          const NamespaceDigest& digest) const {
  return rep_->tenants->Complete(tenant, descriptor, digest);
}

LocalStats LocalServer::Stats() const {
  LocalStats stats;
  rep_->counters.CopyTo(&stats);
  rep_->reaper->CopyTo(&stats);
  const CacheStats cache = rep_->cache->Stats();
  stats.leased_bytes = cache.leased_bytes;
  stats.quarantined_bytes = cache.quarantined_bytes;
  return stats;
}

const LocalServerOptions& LocalServer::options() const { return rep_->options; }

}  // namespace kvarve
