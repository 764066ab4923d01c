// The process kvarve-agent: moves blocks between the pages of engines on this host, which they give
// it by descriptors, and staging memory that it gives them. An engine needs no context of its own
// for that, and no thread of its waits.
//
// A connection is one engine's. What it registered goes when it detaches, hangs up or its process
// is gone (its pidfd says so, also where a forked child keeps the socket open): what moves is
// waited for, then all is unmapped, so that the engine's successor finds its memory.
//
// THREADS: one owner; a thread accepts and each connection has one.  BLOCKS: Stop until all are
// joined.
#ifndef KVARVE_GPU_AGENT_AGENT_SERVER_H_
#define KVARVE_GPU_AGENT_AGENT_SERVER_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/device/device.h"
#include "gpu/device/driver.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"
#include "storage/base/units.h"

namespace kvarve {

class AgentSession;

class AgentServer {
 public:
  static constexpr size_t kMaxSessions = 64;
  struct Options {
    std::string socket_path;              // made for this user alone; a stale one is replaced
    uint64_t staging_bytes = 256 * kMiB;  // of a connection
  };
  // `driver` outlives the server; `device` is of that driver.
  static absl::StatusOr<std::unique_ptr<AgentServer>> Start(const cuda::Driver& driver,
                                                            std::shared_ptr<ComputeDevice> device,
                                                            const Options& options);
  ~AgentServer();

  struct Stats {
    uint64_t sessions = 0, attached = 0;    // now
    uint64_t connections = 0, refused = 0;  // since Start
    uint64_t moves = 0, failed_moves = 0, stale_moves = 0;
    bool device_failed = false;  // for good: the process should end, and another begin
  };
  Stats stats() const;

 private:
  friend class AgentSession;
  struct Entry {
    std::shared_ptr<AgentSession> session;  // whose destructor is known elsewhere
    std::thread thread;
    bool over = false;
  };
  AgentServer(const cuda::Driver& driver, std::shared_ptr<ComputeDevice> device, Options options)
      : driver_(driver), device_(std::move(device)), options_(std::move(options)) {}
  absl::Status Listen();
  void Accept();
  void Admit(UniqueFd socket);
  void JoinEnded();

  const cuda::Driver& driver_;
  const std::shared_ptr<ComputeDevice> device_;
  const Options options_;
  UniqueFd listener_, stop_;  // an eventfd that all poll
  std::thread thread_;
  mutable Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_GPU_AGENT_AGENT_SERVER_H_
