// Looks for what keeps an engine from using the daemon, or makes it slow. Each finding says what to
// do. THREADS: one.  BLOCKS: on the daemon (the timeout) and on the engine's Python
// (kPythonSeconds).
#ifndef KVARVE_CLIENT_CLI_DOCTOR_H_
#define KVARVE_CLIENT_CLI_DOCTOR_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/context.h"
#include "gpu/device/device.h"

namespace kvarve::cli {

inline constexpr int kPythonSeconds = 60;

enum class Level { kOk, kWarning, kProblem };

struct Finding {
  std::string area;   // "daemon", "host", "engine"
  std::string check;  // "socket folder"
  Level level = Level::kOk;
  std::string text;    // what is
  std::string action;  // what to do; empty when it is good
};
using Findings = std::vector<Finding>;

// Files of /proc and /sys lie under `root` ("" in production); what the process may do is asked of
// the kernel.
struct HostView {
  std::string root;
  std::string Read(const std::string& path) const;  // empty: cannot be read
};

// The socket, its folder, and who may use them.
void CheckSocket(const std::string& path, Findings* findings);
// Pages, locked memory, socket buffers, io_uring.
void CheckHost(const HostView& host, Findings* findings);
// What ListCudaDevices says, or why there is no driver.
void CheckGpus(const absl::StatusOr<std::vector<ComputeDeviceInfo>>& devices, Findings* findings);
// Memory that the daemon may take against what the host has, versions, leases. `status` is its
// answer to "status".
void CheckDaemon(const Json& status, const HostView& host, Findings* findings);

// An engine's command line as a shell would take it.
struct EngineCommand {
  std::vector<std::string> words;                  // without what follows
  std::map<std::string, std::string> environment;  // with the command's own assignments
  // The KV-transfer configuration, dotted flags (--kv-transfer-config.kv_role) included. Null:
  // there is none; no object: it cannot be read.
  Json transfer;
};
// Assignments in front ("KVARVE=1 vllm serve ..." and "env KVARVE=1 vllm serve ...") count as
// `environment`.
EngineCommand ParseEngineCommand(std::vector<std::string> words,
                                 std::map<std::string, std::string> environment);
// What the connector reads its settings from: {"extra": {...}, "environment": {"KVARVE_...": ...}}.
Json ConnectorSettings(const EngineCommand& engine);
// The Python that such a command runs: its first word when that is a Python, else the one that the
// first line of the script names. Empty: neither.
std::string PythonOf(const EngineCommand& engine);

// What the engine's Python says about the packages it would use: versions, whether the plug-in
// is registered, and whether its connector takes these settings (null: not asked).
absl::StatusOr<Json> AskPython(const std::string& python, const Json& settings);
void CheckPython(const Json& answer, Findings* findings);

// The command line and the environment. `examined`: the endpoint that doctor looks at.
void CheckEngineCommand(const EngineCommand& engine, const std::string& examined,
                        Findings* findings);

// What so many engines of that command line take of the daemon (connections, staging), against its
// limits. `status` is its answer to "status"; empty: without limits, nothing is compared.
void CheckEngineSize(const EngineCommand& engine, uint32_t engines, const Json& status,
                     Findings* findings);

// Whether a daemon and this client are of versions that were made for each other (one minor version
// apart at most).
bool VersionsFit(const std::string& a, const std::string& b);

}  // namespace kvarve::cli

#endif  // KVARVE_CLIENT_CLI_DOCTOR_H_
