#include "services/rpc/rpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "services/rpc/kv_cache_service.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr int kMaxReplyBytes = 4 << 20;  // Stats of 4,096 namespaces fits
constexpr int kMaxMetadataBytes = 8 << 10;
constexpr int kMaxStreamsPerConnection = 64;
constexpr size_t kMemoryQuotaBytes = 64 << 20;
constexpr int kMaxConnectionAgeMs = 3'600'000;
constexpr int kConnectionAgeGraceMs = 30'000;

void SetLimits(const RpcServerOptions& options, grpc::ServerBuilder* builder) {
  grpc::ResourceQuota quota("kvarve");
  quota.Resize(kMemoryQuotaBytes);
  builder->SetResourceQuota(quota);
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder->SetMaxSendMessageSize(kMaxReplyBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kMaxConnectionAgeMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kConnectionAgeGraceMs);
  // Two daemons on one port would share its connections.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A compressed request could grow far beyond the limit above.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
}

}  // namespace

struct RpcServer::Rep {
  std::unique_ptr<KvCacheService> service;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

RpcServer::RpcServer(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options,
                                                            BlockStore* store) {
  if (!options.listen.is_loopback) {
    return absl::FailedPreconditionError(
        absl::StrFormat("rpc.listen is %s: the gRPC server has no encryption and listens on "
                        "loopback only; use 127.0.0.1 or [::1]",
                        options.listen.ToString()));
  }
  if (options.token_file.empty()) {
    return absl::FailedPreconditionError("rpc.listen is set, but rpc.token_file is not");
  }
  KV_ASSIGN_OR_RETURN(BearerToken token, BearerToken::FromFile(options.token_file));

  auto rep = std::make_unique<Rep>();
  rep->service = std::make_unique<KvCacheService>(options, token, store);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetLimits(options, &builder);
  builder.AddListeningPort(options.listen.ToString(), grpc::InsecureServerCredentials(),
                           &rep->port);
  builder.RegisterService(rep->service.get());
  rep->server = builder.BuildAndStart();
  if (rep->server == nullptr || rep->port == 0) {
    return absl::UnavailableError(
        absl::StrFormat("rpc.listen: cannot listen on %s; is another process on that port?",
                        options.listen.ToString()));
  }
  rep->server->GetHealthCheckService()->SetServingStatus(v1::KvCache::service_full_name(), true);
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(rep)));
}

RpcServer::~RpcServer() { Stop(0); }

uint16_t RpcServer::port() const { return static_cast<uint16_t>(rep_->port); }

RpcStats RpcServer::Stats() const { return rep_->service->Counted(); }

void RpcServer::Stop(int64_t grace_nanos) {
  if (rep_->server == nullptr) return;
  rep_->server->GetHealthCheckService()->SetServingStatus(false);
  rep_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::nanoseconds(grace_nanos));
  rep_->server->Wait();
  rep_->server.reset();
}

}  // namespace kvarve
