// HTTP for monitoring: /metrics, /healthz (the process answers), /readyz (it serves clients), and a
// status page at / over /status.json. Everything is read-only. The only user of cpp-httplib. It has
// no credentials: it shows numbers, settings, tenants' names and no keys. THREADS: any. The
// functions given are called in its threads.  BLOCKS: Start, on the socket; Stop, until answers are
//          out (at most kHttpSeconds).
#ifndef KVARVE_SERVICES_METRICS_METRICS_SERVER_H_
#define KVARVE_SERVICES_METRICS_METRICS_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/config/settings.h"

namespace kvarve {

inline constexpr size_t kHttpThreads = 16;
inline constexpr size_t kHttpQueueMax =
    16;  // connections that wait for a thread; beyond it accepting waits
inline constexpr int kHttpSeconds = 1;  // to read a request, and to write an answer

struct MetricsServerOptions {
  ListenAddress listen;  // port 0: any free one
  std::function<std::string()> metrics;
  std::function<std::string()> status_json;  // null: no status page
  // The text of the answer; the reason why not is one, too.
  std::function<absl::StatusOr<std::string>()> ready;
};

class MetricsServer {
 public:
  // Unavailable: the address is taken or is not this host's.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(MetricsServerOptions options);
  ~MetricsServer();

  uint16_t port() const;
  void Stop();

 private:
  struct Rep;
  explicit MetricsServer(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_METRICS_METRICS_SERVER_H_
