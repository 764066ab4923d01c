// A Client's inside, for the files that implement it.
// THREADS: as Client.
#ifndef KVARVE_CLIENT_CPP_CLIENT_REP_H_
#define KVARVE_CLIENT_CPP_CLIENT_REP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/cpp/link.h"
#include "client/cpp/remote.h"
#include "client/cpp/staging.h"

namespace kvarve {

// One of the two.
struct Client::Rep {
  std::shared_ptr<client::Link> link;
  std::unique_ptr<client::RemotePlane> remote;
  std::shared_ptr<client::StagingMemory> staging;  // of the remote one
  client::ForkStamp stamp;

  absl::StatusOr<client::OpenNamespaceInfo> KnownNamespace(ClientNamespace ns) const {
    return remote != nullptr ? remote->KnownNamespace(ns) : link->KnownNamespace(ns);
  }
};

}  // namespace kvarve

#endif  // KVARVE_CLIENT_CPP_CLIENT_REP_H_
