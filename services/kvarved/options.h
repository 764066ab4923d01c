// From the configuration to what each part is told at its start.
// THREADS: any.
#ifndef KVARVE_SERVICES_KVARVED_OPTIONS_H_
#define KVARVE_SERVICES_KVARVED_OPTIONS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/config/config.h"
#include "services/local/options.h"
#include "services/rpc/rpc_server.h"
#include "storage/arena/host_memory.h"
#include "storage/base/log.h"
#include "storage/cache/cache.h"
#include "storage/io/open_device.h"

namespace kvarve {

struct NvmeOptions {
  std::vector<std::string> paths;
  uint64_t device_bytes = 0;  // of files to be made; 0: none is
  WantedBackend backend = WantedBackend::kAuto;
  std::string catalogue_dir;  // empty: none
  int64_t stop_nanos = 0;
};

// One effective setting as the status page shows it. What tells where secrets lie is masked.
struct SettingShown {
  std::string name;
  std::string value;
  std::string origin;
};

struct DaemonOptions {
  std::string version;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  CacheOptions cache;
  NvmeOptions nvme;
  LocalServerOptions local;  // its admin handler is the daemon's
  ListenAddress metrics;     // may be off
  std::optional<RpcServerOptions> rpc;
  uint64_t rpc_read_bytes = 0, rpc_pin_bytes = 0;  // BlockStoreOptions
  std::string admin_socket;                        // empty: off
  ListenAddress admin_listen;                      // needs `rpc` with TLS
  std::string record_path;                         // AccessRecorder; empty: none
  uint64_t record_bytes_max = 0;
  std::string policy_file;             // PolicyFile; empty: none
  std::string config_yaml;             // the effective configuration, as printed
  std::vector<SettingShown> settings;  // the same, masked, in the table's order
};

// InvalidArgument: values that are right alone but not together or not on this host (more memory
// than kvarved may take, a uid that is no number); names the setting and where it came from.
absl::StatusOr<DaemonOptions> DaemonOptionsOf(const Config& config, const HostMemory& host);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_KVARVED_OPTIONS_H_
