// The seam behind which a daemon of another host is reached: what a Client of a "kvarve://"
// endpoint asks. client/rpc does it over gRPC; a process that wants it says so once
// (UseRemotePlane), so that libkvarve alone links no gRPC.
//
// THREADS: any.  BLOCKS: up to the client's time-outs, where a call asks the daemon.
#ifndef KVARVE_CLIENT_CPP_REMOTE_H_
#define KVARVE_CLIENT_CPP_REMOTE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/cpp/endpoint.h"
#include "client/cpp/namespace_info.h"

namespace kvarve::client {

class RemotePlane {
 public:
  virtual ~RemotePlane() = default;

  // Whose TraceScopes calls look for: the plane may lie in another shared object than its callers,
  // and have thread-local variables of its own. Before any call.
  using CurrentTrace = std::string_view (*)();
  virtual void TakeTracesFrom(CurrentTrace current) = 0;

  virtual absl::Status WaitReady(int64_t timeout_nanos) = 0;
  virtual ClientState State() const = 0;
  virtual absl::StatusOr<ClientNamespace> OpenNamespace(const NamespaceDescriptor& descriptor) = 0;
  // As last opened, or as its descriptor says. InvalidArgument: no such namespace.
  virtual absl::StatusOr<OpenNamespaceInfo> KnownNamespace(ClientNamespace ns) const = 0;

  virtual absl::StatusOr<LookupResult> Lookup(ClientNamespace ns, std::span<const BlockKey> keys,
                                              int64_t hold_nanos, uint32_t recompute_us) = 0;
  // Keeps the leading blocks found from leaving, for kGrantSeconds at most; counts an access.
  static constexpr int64_t kGrantSeconds = 60;
  virtual absl::StatusOr<GrantSet> Keep(ClientNamespace ns, std::span<const BlockKey> keys,
                                        uint64_t request_id) = 0;
  virtual void Release(uint64_t lease) = 0;  // never waits
  // The leading blocks found, into `destinations`; their checksums, each compared when `verify`
  // (a mismatch ends the hit, is counted and reported).
  virtual absl::StatusOr<std::vector<uint64_t>> Read(ClientNamespace ns,
                                                     std::span<const BlockKey> keys,
                                                     std::span<std::byte* const> destinations,
                                                     uint64_t request_id, bool verify) = 0;
  // Blocks that lie one after the other at `data`; `hold` is kept until the last byte has gone.
  // `reason` may be null: Client::Put's.
  virtual absl::StatusOr<std::vector<PutOutcome>> Put(ClientNamespace ns, const PutChain& chain,
                                                      const std::byte* data,
                                                      std::shared_ptr<void> hold,
                                                      std::string* reason) = 0;
  virtual void ReportMismatch(ClientNamespace ns, const BlockKey& key) = 0;
  virtual absl::StatusOr<size_t> Touch(ClientNamespace ns, std::span<const BlockKey> keys,
                                       uint64_t request_id) = 0;
  virtual absl::StatusOr<PrefetchResult> Prefetch(ClientNamespace ns,
                                                  std::span<const BlockKey> keys,
                                                  uint64_t request_id) = 0;
  virtual absl::StatusOr<TenantStats> ReadTenantStats() = 0;
  virtual absl::StatusOr<std::unique_ptr<EventStream>> WatchEvents(int64_t timeout_nanos,
                                                                   const EventCursor& from) = 0;
  // Client::Admin, of an endpoint of administration.
  virtual absl::StatusOr<std::string> Admin(std::string_view json) = 0;
  // No keys: the whole namespace.
  virtual absl::StatusOr<uint64_t> Invalidate(ClientNamespace ns,
                                              std::span<const BlockKey> keys) = 0;
};

using RemotePlaneFactory = absl::StatusOr<std::unique_ptr<RemotePlane>> (*)(
    const ClientOptions& options, const Endpoint& endpoint);
// From here on Clients of this process reach other hosts through `factory`.
void UseRemotePlane(RemotePlaneFactory factory);
// FailedPrecondition: nobody said how.
absl::StatusOr<std::unique_ptr<RemotePlane>> MakeRemotePlane(const ClientOptions& options,
                                                             const Endpoint& endpoint);

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_REMOTE_H_
