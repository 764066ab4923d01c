// kvarved, but for one thing: of each block that is complete on a device it writes 40 bytes (key,
// seq) to the descriptor KVARVE_COMPLETED_FD before anybody else is told, so that a test that kills
// it knows what must be there afterwards.
//   hooked_daemon FILE      a configuration file
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "services/config/config.h"
#include "services/kvarved/daemon.h"
#include "storage/arena/host_memory.h"

int main(int argc, char** argv) {
  using namespace kvarve;
  const char* const text = std::getenv("KVARVE_COMPLETED_FD");
  if (argc != 2 || text == nullptr) return 2;
  const int fd = std::atoi(text);
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ConfigSources sources;
  sources.file = argv[1];
  const auto config = Config::Load(sources);
  const auto host = ReadHostMemory();
  if (!config.ok() || !host.ok()) return 2;
  auto options = DaemonOptionsOf(*config, *host);
  if (!options.ok()) return 2;
  SetLogLevel(options->log_level);
  options->cache.devices.on_written = [fd](const AppendBlock& block) {
    char line[BlockKey::kMaxBytes + sizeof(uint64_t)];
    std::memcpy(line, block.record.key.bytes.data(), BlockKey::kMaxBytes);
    std::memcpy(line + BlockKey::kMaxBytes, &block.record.seq, sizeof(uint64_t));
    if (::write(fd, line, sizeof(line)) != sizeof(line)) ::_exit(3);
  };
  auto daemon = Daemon::Start(*std::move(options));
  if (!daemon.ok()) {
    std::fprintf(stderr, "%s\n", std::string(daemon.status().message()).c_str());
    return 1;
  }
  int signal = 0;
  ::sigwait(&signals, &signal);
  daemon->reset();
  return 0;
}
