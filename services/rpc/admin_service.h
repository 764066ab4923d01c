// kvarve.v1.KvAdmin: what an operator asks of one node. It is served on a Unix socket of its own,
// whose file permissions say who may, and on a port of its own, where certificates do.
//
// THREADS: any.  BLOCKS: Resize and Evict, for the cache's work.
#ifndef KVARVE_SERVICES_RPC_ADMIN_SERVICE_H_
#define KVARVE_SERVICES_RPC_ADMIN_SERVICE_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/kvarve/v1/admin.grpc.pb.h"
#include "services/rpc/caller.h"

namespace kvarve {

// What the node does when asked; each may be called from any thread.
struct AdminActions {
  std::function<uint64_t(bool draining)> drain;  // returns the streams that are open
  // Returns the capacity in effect. InvalidArgument: more or less than there may be.
  std::function<absl::StatusOr<uint64_t>(uint64_t capacity_bytes)> resize;
  // Returns blocks and bytes.
  std::function<std::pair<uint64_t, uint64_t>(uint64_t bytes, std::string_view tenant)> evict;
  std::function<std::string()> config;  // YAML
  // Returns the quota in effect. InvalidArgument: no tenant's name, or no quota.
  std::function<absl::StatusOr<std::string>(const std::string& tenant, const std::string& quota)>
      set_quota;
  std::function<absl::StatusOr<std::string>(const std::string& json)> ask;  // Admin::Handle
};

class KvAdminService final : public v1::KvAdmin::CallbackService {
 public:
  // Without `callers` whoever comes may do all.
  KvAdminService(AdminActions actions, std::optional<Callers> callers)
      : actions_(std::move(actions)), callers_(callers) {}

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  Unary* Drain(Context* context, const v1::DrainRequest* request, v1::DrainReply* reply) override;
  Unary* Resize(Context* context, const v1::ResizeRequest* request,
                v1::ResizeReply* reply) override;
  Unary* Evict(Context* context, const v1::EvictRequest* request, v1::EvictReply* reply) override;
  Unary* Config(Context* context, const v1::ConfigRequest* request,
                v1::ConfigReply* reply) override;
  Unary* SetQuota(Context* context, const v1::SetQuotaRequest* request,
                  v1::SetQuotaReply* reply) override;
  Unary* Ask(Context* context, const v1::AskRequest* request, v1::AskReply* reply) override;

 private:
  // Admits, runs, logs and finishes one call.
  template <typename Run>
  Unary* Serve(Context* context, const char* what, Run run);
  absl::Status Admit(const Context& context, std::string* who) const;

  const AdminActions actions_;
  const std::optional<Callers> callers_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_ADMIN_SERVICE_H_
