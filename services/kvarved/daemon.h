// All parts of kvarved, started in order and stopped in the reverse one: cache, same-host plane,
// gRPC, monitoring. THREADS: Start and Stop, one.  BLOCKS: Stop, until requests in progress are
// done.
#ifndef KVARVE_SERVICES_KVARVED_DAEMON_H_
#define KVARVE_SERVICES_KVARVED_DAEMON_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "services/kvarved/options.h"

namespace kvarve {

class Daemon {
 public:
  // Serves when it returns. AlreadyExists: another daemon serves the socket. Otherwise the failing
  // part's error.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(DaemonOptions options);
  ~Daemon();

  uint64_t incarnation() const;
  uint16_t metrics_port() const;  // 0: off
  uint16_t rpc_port() const;      // 0: off

  // Not ready from its begin on. Called by the destructor too.
  void Stop();

 private:
  struct Rep;
  explicit Daemon(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_KVARVED_DAEMON_H_
