// What `kvarve` asks of a daemon: one JSON object in, one out (docs/operations.md).
//
//   {"op": "status"}       {"op": "stats"}
//   {"op": "namespaces", "offset": 0}                     what fits an answer, and the total
//   {"op": "tenants"}                                     what each has, may have and did
//   {"op": "quota", "tenant": NAME, "quota": "host_bytes:1GiB..4GiB entries:..1000"}
//   {"op": "drain", "on": true | false}                   {"op": "config"}
//   {"op": "evict", "bytes": "1GiB" | bytes, "tenant": NAME}    of all, without "tenant"
//   {"op": "resize", "capacity": "2GiB" | "50%" | bytes}
//   {"op": "invalidate", "ns": HEX | "model": NAME | "all": true}
//
// THREADS: any.  BLOCKS: resize and invalidate, for the cache's work.
#ifndef KVARVE_SERVICES_KVARVED_ADMIN_H_
#define KVARVE_SERVICES_KVARVED_ADMIN_H_

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "services/kvarved/options.h"
#include "services/local/counters.h"
#include "storage/cache/cache.h"

namespace kvarve {

inline constexpr size_t kNamespacesPerAnswer = 256;
// An answer has to fit a message of the plane; names are as long as clients made them.
inline constexpr size_t kNamespaceBytesPerAnswer = 128 * 1024;

// What only the running parts know.
struct LiveState {
  LocalStats local;
  uint16_t metrics_port = 0;  // 0: off
  uint16_t rpc_port = 0;
};

class Admin {
 public:
  // `cache` and `options` outlive it. `live` may be called from any thread.
  // `drain` returns how many streams are open.
  Admin(const DaemonOptions* options, Cache* cache, std::function<LiveState()> live,
        std::function<uint64_t(bool draining)> drain);

  // InvalidArgument: not JSON, an unknown op or field, a value of another kind; says what is
  // expected. NotFound: a namespace or model that nobody opened. Whoever asks has been let in;
  // `uid` is for the log.
  absl::StatusOr<std::string> Handle(std::string_view json, uid_t uid);
  // The quota in effect, as text.
  absl::StatusOr<std::string> SetQuota(const std::string& tenant, const std::string& quota,
                                       uid_t uid);

 private:
  const DaemonOptions* const options_;
  Cache* const cache_;
  const std::function<LiveState()> live_;
  const std::function<uint64_t(bool draining)> drain_;
  const int64_t start_nanos_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_KVARVED_ADMIN_H_
