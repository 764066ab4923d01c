#include "services/rpc/rpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/frames/frames.h"
#include "services/auth/grpc_credentials.h"
#include "services/rpc/kv_cache_service.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

// A whole frame, or Stats of 4,096 namespaces.
constexpr int kMaxReplyBytes = frames::kMaxPayloadBytes + frames::kMaxFrameHeaderBytes;
constexpr int kMaxMetadataBytes = 8 << 10;
constexpr int kMaxStreamsPerConnection = 64;
constexpr size_t kMemoryQuotaBytes = 256 << 20;
constexpr int kMaxConnectionAgeMs = 3'600'000;
constexpr int kConnectionAgeGraceMs = 30'000;
// A peer that is gone, or reads nothing at all, holds its connection's memory so long at most.
constexpr int kKeepaliveMs = 20'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
constexpr int64_t kNanosPerMilli = 1'000'000;

void SetLimits(const RpcServerOptions& options, grpc::ServerBuilder* builder) {
  grpc::ResourceQuota quota("kvarve");
  quota.Resize(kMemoryQuotaBytes);
  builder->SetResourceQuota(quota);
  // Frames are the largest messages; other requests are held to options.max_message_bytes.
  builder->SetMaxReceiveMessageSize(static_cast<int>(std::max<uint64_t>(
      options.max_message_bytes, frames::kMaxPayloadBytes + frames::kMaxFrameHeaderBytes)));
  builder->SetMaxSendMessageSize(kMaxReplyBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kMaxConnectionAgeMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kConnectionAgeGraceMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Clients look after their connections likewise; without this gRPC takes that for an attack.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kKeepaliveMs / 2);
  // TLS's hello and HTTP/2's preface; Connections sees to all that may be slow after them.
  builder->AddChannelArgument(
      GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
      static_cast<int>(options.connections.greeting_nanos / kNanosPerMilli));
  // A compressed request could grow far beyond the limit above.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
}

}  // namespace

struct RpcServer::Rep {
  std::unique_ptr<Authenticator> auth;
  std::unique_ptr<Connections> connections;
  std::unique_ptr<KvCacheService> service;
  std::unique_ptr<grpc::Server> server;
};

RpcServer::RpcServer(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options,
                                                            BlockStore* store) {
  if (options.listen.off()) return absl::FailedPreconditionError("rpc.listen is off");
  TransportOptions transport = options.transport;
  transport.address = options.listen.ToString();
  transport.is_loopback = options.listen.is_loopback;
  KV_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> credentials,
                      ServerCredentialsOf(transport));
  AuthOptions auth = options.auth;
  auth.tls = UsesTls(transport);

  auto rep = std::make_unique<Rep>();
  KV_ASSIGN_OR_RETURN(rep->auth, Authenticator::Create(auth));
  KV_ASSIGN_OR_RETURN(rep->connections, Connections::Listen(options.listen, options.connections));
  rep->service = std::make_unique<KvCacheService>(
      options, Callers(rep->auth.get(), rep->connections.get()), store);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetLimits(options, &builder);
  std::unique_ptr<Connections::Acceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  builder.RegisterService(rep->service.get());
  rep->server = builder.BuildAndStart();
  if (rep->server == nullptr) return absl::UnavailableError("rpc.listen: gRPC does not start");
  rep->server->GetHealthCheckService()->SetServingStatus(v1::KvCache::service_full_name(), true);
  rep->connections->Start(std::move(acceptor));
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(rep)));
}

RpcServer::~RpcServer() { Stop(0); }

uint16_t RpcServer::port() const { return rep_->connections->port(); }
Authenticator* RpcServer::auth() const { return rep_->auth.get(); }

RpcStats RpcServer::Stats() const {
  RpcStats stats = rep_->service->Counted();
  stats.auth = rep_->auth->Stats();
  stats.connections = rep_->connections->Stats();
  return stats;
}

uint64_t RpcServer::SetDraining(bool draining) {
  rep_->service->SetDraining(draining);
  rep_->server->GetHealthCheckService()->SetServingStatus(v1::KvCache::service_full_name(),
                                                          !draining);
  return Stats().streams.open;
}
bool RpcServer::draining() const { return rep_->service->draining(); }

void RpcServer::Stop(int64_t grace_nanos) {
  if (rep_->server == nullptr) return;
  rep_->connections->Stop();
  rep_->server->GetHealthCheckService()->SetServingStatus(false);
  rep_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::nanoseconds(grace_nanos));
  rep_->server->Wait();
  rep_->server.reset();
}

}  // namespace kvarve
