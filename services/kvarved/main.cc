// kvarved: reads the configuration, starts the daemon, waits for a signal, stops it.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "services/config/command_line.h"
#include "services/config/config.h"
#include "services/config/docs.h"
#include "services/kvarved/check_files.h"
#include "services/kvarved/config_schema.h"
#include "services/kvarved/daemon.h"
#include "services/metrics/exposition.h"
#include "storage/base/freed_memory.h"
#include "storage/base/huge_pages.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

constexpr int kExitGood = 0;
constexpr int kExitFailed = 1;
constexpr int kExitConfiguration = 2;
constexpr int kExitSecondDaemon = 3;
constexpr char kDefaultFile[] = "/etc/kvarve/kvarved.yaml";
constexpr rlim_t kWantedFiles = 65536;  // a session needs a few

int Fail(int code, const absl::Status& status) {
  std::fprintf(stderr, "kvarved: %s\n", std::string(status.message()).c_str());
  return code;
}

int Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return std::fflush(stdout) == 0 ? kExitGood : kExitFailed;
}

absl::StatusOr<Config> LoadConfig(const CommandLine& line) {
  ConfigSources sources;
  sources.flags = line.flags;
  for (char** variable = environ; *variable != nullptr; ++variable)
    sources.environment.emplace_back(*variable);
  sources.file = line.config_file;
  const char* const named = std::getenv("KVARVE_CONFIG");
  if (sources.file.empty() && named != nullptr) sources.file = named;
  if (sources.file.empty() && ::access(kDefaultFile, F_OK) == 0) sources.file = kDefaultFile;
  return Config::Load(sources);
}

// Clients' KV is in this process's memory: no core dump holds it, and no other process of the user
// may trace it.
absl::Status HideMemory() {
  if (::prctl(PR_SET_DUMPABLE, 0) != 0) return absl::InternalError("prctl(PR_SET_DUMPABLE) failed");
  return absl::OkStatus();
}

void RaiseFileLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kWantedFiles));
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Blocks the signals that stop the daemon, in this thread and all that it starts.
sigset_t BlockStopSignals() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);  // logs go to standard error: there is nothing to open again
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// Pages that the next chunk would get: reserved huge ones when enough of them are free.
std::string PagesNow(const ArenaOptions& arena) {
  uint64_t free_pages = 0;
  std::ifstream("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") >> free_pages;
  const std::string huge = FormatBytes(kHugePageBytes);
  if (arena.huge_pages && free_pages * kHugePageBytes >= arena.chunk_bytes) return huge;
  // Whether the kernel has them shows as they are asked for (kvarve_arena_page_size_bytes).
  if (arena.huge_pages && arena.prefault) return "up to " + huge;
  return FormatBytes(static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));
}

void LogStart(const DaemonOptions& options, const Daemon& daemon) {
  const auto port = [](uint16_t number) {
    return number == 0 ? "off" : absl::StrFormat("%d", number);
  };
  KvLog(LogLevel::kInfo, "kvarved started",
        {{"version", options.version},
         {"incarnation", absl::StrFormat("%016x", daemon.incarnation())},
         {"pid", absl::StrFormat("%d", ::getpid())},
         {"socket", options.local.socket_path},
         {"capacity", FormatBytes(options.cache.arena.capacity_bytes)},
         {"chunk", FormatBytes(options.cache.arena.chunk_bytes)},
         {"page", PagesNow(options.cache.arena)},
         {"metrics_port", port(daemon.metrics_port())},
         {"rpc_port", port(daemon.rpc_port())}});
}

int Serve(const DaemonOptions& options) {
  SetLogLevel(options.log_level);
  SetLogFormat(options.log_format);
  const sigset_t stop_signals = BlockStopSignals();
  RaiseFileLimit();
  KeepFreedMemory();
  if (const absl::Status hidden = HideMemory(); !hidden.ok()) return Fail(kExitFailed, hidden);

  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(options);
  if (!daemon.ok()) {
    const bool is_second = daemon.status().code() == absl::StatusCode::kAlreadyExists;
    return Fail(is_second ? kExitSecondDaemon : kExitFailed, daemon.status());
  }
  LogStart(options, **daemon);

  int signal = 0;
  ::sigwait(&stop_signals, &signal);
  KvLog(LogLevel::kInfo, "kvarved stops", {{"signal", signal == SIGTERM ? "SIGTERM" : "SIGINT"}});
  // A second signal ends the process at once.
  ::pthread_sigmask(SIG_UNBLOCK, &stop_signals, nullptr);
  daemon->reset();
  KvLog(LogLevel::kInfo, "kvarved stopped");
  return kExitGood;
}

int Main(int argc, char** argv) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(argc, argv);
  if (!line.ok()) return Fail(kExitConfiguration, line.status());
  switch (line->action) {
    case CommandLine::Action::kHelp:
      return Print(line->help);
    case CommandLine::Action::kVersion:
      return Print("kvarved " KVARVE_VERSION "\n");
    case CommandLine::Action::kPrintDocs:
      return Print(ConfigurationMarkdown());
    case CommandLine::Action::kPrintMetrics:
      return Print(MetricsMarkdown());
    case CommandLine::Action::kPrintSchema:
      return Print(ConfigSchemaJson());
    default:
      break;
  }
  const absl::StatusOr<Config> config = LoadConfig(*line);
  if (!config.ok()) return Fail(kExitConfiguration, config.status());
  if (line->action == CommandLine::Action::kPrintConfig) return Print(config->Print());
  const absl::StatusOr<HostMemory> host = ReadHostMemory();
  if (!host.ok()) return Fail(kExitFailed, host.status());
  absl::StatusOr<DaemonOptions> options = DaemonOptionsOf(*config, *host);
  if (!options.ok()) {
    // No memory just now: trying again may help, which it does not where the configuration is
    // wrong.
    const bool is_scarce = absl::IsResourceExhausted(options.status());
    return Fail(is_scarce ? kExitFailed : kExitConfiguration, options.status());
  }
  if (line->action == CommandLine::Action::kCheck) {
    const std::vector<std::string> bad = BadFiles(*config, *options);
    for (const std::string& one : bad) std::fprintf(stderr, "kvarved: %s\n", one.c_str());
    if (!bad.empty()) return kExitConfiguration;
    return Print("the configuration is good: " + FormatBytes(options->cache.arena.capacity_bytes) +
                 " for blocks, socket " + options->local.socket_path + "\n");
  }
  return Serve(*std::move(options));
}

}  // namespace
}  // namespace kvarve

int main(int argc, char** argv) { return kvarve::Main(argc, argv); }
