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

// What the engine's Python says about the packages it would use: versions and whether the plug-in
// is registered.
absl::StatusOr<Json> AskPython(const std::string& python);
void CheckPython(const Json& answer, Findings* findings);
// The words of the engine's command line, and its environment.
void CheckEngineCommand(std::span<const std::string> words,
                        const std::map<std::string, std::string>& environment, Findings* findings);

// What so many engines of that command line take of the daemon (connections, staging), against its
// limits. `status` is its answer to "status"; empty: without limits, nothing is compared.
void CheckEngineSize(std::span<const std::string> words,
                     const std::map<std::string, std::string>& environment, uint32_t engines,
                     const Json& status, Findings* findings);

// Whether a daemon and this client are of versions that were made for each other (one minor version
// apart at most).
bool VersionsFit(const std::string& a, const std::string& b);

}  // namespace kvarve::cli

#endif  // KVARVE_CLIENT_CLI_DOCTOR_H_
