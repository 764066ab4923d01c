#include "services/rpc/rpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "client/frames/frames.h"
#include "services/auth/grpc_credentials.h"
#include "services/rpc/grpc_log.h"
#include "services/rpc/kv_cache_service.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

// A whole frame, or Stats of 4,096 namespaces.
constexpr int kMaxReplyBytes = frames::kMaxPayloadBytes + frames::kMaxFrameHeaderBytes;
constexpr int kMaxStreamsPerConnection = 64;

void SetLimits(const RpcServerOptions& options, grpc::ServerBuilder* builder) {
  LimitEach(options.connections, kMaxStreamsPerConnection, builder);
  // Frames are the largest messages; other requests are held to options.max_message_bytes.
  builder->SetMaxReceiveMessageSize(static_cast<int>(std::max<uint64_t>(
      options.max_message_bytes, frames::kMaxPayloadBytes + frames::kMaxFrameHeaderBytes)));
  builder->SetMaxSendMessageSize(kMaxReplyBytes);
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
  UseGrpcLog();
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
  stats.tls_handshake_failures = TlsHandshakeFailures();
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
