// kvarve-agent: moves blocks for the engines of one GPU, in a process of its own (docs/gpu.md).
#include <signal.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "gpu/agent/agent_server.h"
#include "gpu/device/cuda_device.h"
#include "gpu/kernels/kernel_module.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

struct Settings {
  std::string socket = "/run/kvarve/agent.sock";
  std::string device, staging = "256MiB";
};

absl::Status Serve(const Settings& settings, const sigset_t& ends) {
  AgentServer::Options options;
  options.socket_path = settings.socket;
  KV_ASSIGN_OR_RETURN(options.staging_bytes, ParseBytes(settings.staging));
  KV_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::LoadDriver());
  KV_ASSIGN_OR_RETURN(const auto module, KernelModule());
  KV_ASSIGN_OR_RETURN(std::shared_ptr<ComputeDevice> device,
                      OpenCudaDevice(*driver, settings.device, module));
  // A descriptor for each chunk of an engine's memory, while it is imported.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  std::printf("kvarve-agent: %s on %s\n", settings.socket.c_str(), device->info().uuid.c_str());
  std::fflush(stdout);
  KV_ASSIGN_OR_RETURN(const auto server, AgentServer::Start(*driver, std::move(device), options));
  constexpr timespec kLook{1, 0};
  while (::sigtimedwait(&ends, nullptr, &kLook) < 0) {
    // No process gets rid of such an error: a new one has to begin.
    if (server->stats().device_failed) return absl::InternalError("the device failed");
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace kvarve

int main(int argc, char** argv) {
  CLI::App app("kvarve-agent: moves blocks between engines' pages on one GPU and host memory");
  kvarve::Settings settings;
  app.add_option("--socket", settings.socket, "where engines connect")->capture_default_str();
  app.add_option("--device", settings.device, "UUID of the GPU, where there are several");
  app.add_option("--staging", settings.staging, "host memory for each engine's blocks")
      ->capture_default_str();
  app.set_version_flag("--version", "kvarve-agent " KVARVE_VERSION);
  app.footer(
      "Exit codes: 0 ended by SIGTERM or SIGINT; 1 it cannot serve, or the GPU failed: begin "
      "another;\n"
      "2 wrong command line.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Error& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGTERM);
  ::sigaddset(&ends, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // before there are threads
  const absl::Status status = kvarve::Serve(settings, ends);
  if (status.ok()) return 0;
  std::fprintf(stderr, "kvarve-agent: %s\n", status.ToString().c_str());
  return 1;
}
