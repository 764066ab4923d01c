#include "services/rpc/admin_service.h"

#include "client/rpc/grpc_status.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace kvarve {

absl::Status KvAdminService::Admit(const Context& context, std::string* who) const {
  *who = "socket";
  if (callers_.has_value()) {
    KV_ASSIGN_OR_RETURN(const Caller caller, callers_->AdminOf(context));
    *who = caller.name;
  }
  return CheckDeadline(context);
}

template <typename Run>
KvAdminService::Unary* KvAdminService::Serve(Context* context, const char* what, Run run) {
  std::string who;
  absl::Status status = Admit(*context, &who);
  if (status.ok()) {  // who is refused is the Authenticator's to log, at its rate
    status = run();
    KvLog(LogLevel::kInfo, "administration",
          {{"call", what},
           {"by", who},
           {"answer", status.ok() ? "done" : std::string(status.message())}});
  }
  Unary* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

KvAdminService::Unary* KvAdminService::Drain(Context* context, const v1::DrainRequest* request,
                                             v1::DrainReply* reply) {
  return Serve(context, "Drain", [&] {
    reply->set_open_streams(static_cast<uint32_t>(actions_.drain(request->draining())));
    return absl::OkStatus();
  });
}

KvAdminService::Unary* KvAdminService::Resize(Context* context, const v1::ResizeRequest* request,
                                              v1::ResizeReply* reply) {
  return Serve(context, "Resize", [&]() -> absl::Status {
    KV_ASSIGN_OR_RETURN(const uint64_t capacity, actions_.resize(request->capacity_bytes()));
    reply->set_capacity_bytes(capacity);
    return absl::OkStatus();
  });
}

KvAdminService::Unary* KvAdminService::Evict(Context* context, const v1::EvictRequest* request,
                                             v1::EvictReply* reply) {
  return Serve(context, "Evict", [&] {
    const auto [blocks, bytes] = actions_.evict(request->bytes(), request->tenant());
    reply->set_evicted_blocks(blocks);
    reply->set_evicted_bytes(bytes);
    return absl::OkStatus();
  });
}

KvAdminService::Unary* KvAdminService::Config(Context* context, const v1::ConfigRequest*,
                                              v1::ConfigReply* reply) {
  return Serve(context, "Config", [&] {
    reply->set_yaml(actions_.config());
    return absl::OkStatus();
  });
}

KvAdminService::Unary* KvAdminService::SetQuota(Context* context,
                                                const v1::SetQuotaRequest* request,
                                                v1::SetQuotaReply* reply) {
  return Serve(context, "SetQuota", [&]() -> absl::Status {
    KV_ASSIGN_OR_RETURN(*reply->mutable_quota(),
                        actions_.set_quota(request->tenant(), request->quota()));
    return absl::OkStatus();
  });
}

KvAdminService::Unary* KvAdminService::Ask(Context* context, const v1::AskRequest* request,
                                           v1::AskReply* reply) {
  return Serve(context, "Ask", [&]() -> absl::Status {
    KV_ASSIGN_OR_RETURN(*reply->mutable_json(), actions_.ask(request->json()));
    return absl::OkStatus();
  });
}

}  // namespace kvarve
