#include "services/rpc/admin_server.h"

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "services/auth/grpc_credentials.h"
#include "services/rpc/connections.h"
#include "services/rpc/grpc_log.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;
constexpr int kMaxMessageBytes = 1 << 20;
constexpr int kMaxConcurrentCalls = 16;
constexpr uint32_t kMaxConnections = 64;
constexpr mode_t kOwnerOnly = 0177;  // what a new socket's mode is without

absl::Status CheckPath(const std::string& path) {
  if (path.empty() || path.front() != '/' || path.size() > kMaxPathBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rpc.admin_socket \"%s\" must be an absolute path of at most %d bytes",
                        path, kMaxPathBytes));
  }
  struct stat file;
  if (::lstat(path.c_str(), &file) == 0 && !S_ISSOCK(file.st_mode)) {
    return absl::FailedPreconditionError("rpc.admin_socket " + path +
                                         ": something that is no socket lies there");
  }
  return absl::OkStatus();
}

}  // namespace

struct AdminServer::Rep {
  std::string path;
  std::unique_ptr<Connections> connections;  // of a port
  std::unique_ptr<KvAdminService> service;
  std::unique_ptr<grpc::Server> server;
};

AdminServer::AdminServer(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(const std::string& path,
                                                                AdminActions actions) {
  KV_RETURN_IF_ERROR(CheckPath(path));
  UseGrpcLog();
  auto rep = std::make_unique<Rep>();
  rep->path = path;
  rep->service = std::make_unique<KvAdminService>(std::move(actions), std::nullopt);
  // One of a daemon that was killed; a living one holds the lock of the same-host plane's socket.
  ::unlink(path.c_str());
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
  builder.RegisterService(rep->service.get());
  const mode_t before = ::umask(kOwnerOnly);
  rep->server = builder.BuildAndStart();
  ::umask(before);
  if (rep->server == nullptr) {
    return absl::UnavailableError("rpc.admin_socket: cannot listen on " + path +
                                  "; does its folder exist?");
  }
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(rep)));
}

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(const ListenAddress& listen,
                                                                TransportOptions transport,
                                                                Authenticator* auth,
                                                                AdminActions actions) {
  if (!UsesTls(transport)) {
    return absl::FailedPreconditionError("rpc.admin_listen: administration is in TLS only");
  }
  transport.address = listen.ToString();
  transport.is_loopback = listen.is_loopback;
  KV_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> credentials,
                      ServerCredentialsOf(transport));
  auto rep = std::make_unique<Rep>();
  ConnectionLimits limits;
  limits.connections = kMaxConnections;
  KV_ASSIGN_OR_RETURN(rep->connections, Connections::Listen(listen, limits));
  rep->service =
      std::make_unique<KvAdminService>(std::move(actions), Callers(auth, rep->connections.get()));
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  LimitEach(limits, kMaxConcurrentCalls, &builder);
  std::unique_ptr<Connections::Acceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  builder.RegisterService(rep->service.get());
  rep->server = builder.BuildAndStart();
  if (rep->server == nullptr) {
    return absl::UnavailableError("rpc.admin_listen: gRPC does not start");
  }
  rep->connections->Start(std::move(acceptor));
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(rep)));
}

uint16_t AdminServer::port() const {
  return rep_->connections != nullptr ? rep_->connections->port() : 0;
}

AdminServer::~AdminServer() {
  if (rep_->connections != nullptr) rep_->connections->Stop();
  rep_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  rep_->server->Wait();
  if (!rep_->path.empty()) ::unlink(rep_->path.c_str());
}

}  // namespace kvarve
