#include "client/cpp/remote.h"

#include <atomic>

namespace kvarve::client {
namespace {

std::atomic<RemotePlaneFactory> g_factory{nullptr};

}  // namespace

void UseRemotePlane(RemotePlaneFactory factory) { g_factory.store(factory); }

absl::StatusOr<std::unique_ptr<RemotePlane>> MakeRemotePlane(const ClientOptions& options,
                                                             const Endpoint& endpoint) {
  const RemotePlaneFactory factory = g_factory.load();
  if (factory == nullptr) {
    return absl::FailedPreconditionError(
        "this program was built without gRPC: it reaches the kvarved of its own host only, over "
        "unix:///run/kvarve/kvarved.sock");
  }
  return factory(options, endpoint);
}

}  // namespace kvarve::client
