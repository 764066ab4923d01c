#include "tests/perf/bench_daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"
#include "tests/perf/bench_table.h"

namespace kvarve::perf {
namespace {

constexpr double kStartMicrosMax = 20e6;
constexpr double kStopMicrosMax = 20e6;
constexpr int64_t kPollNanos = 5'000'000;

void Pause() {
  const timespec pause{0, kPollNanos};
  ::nanosleep(&pause, nullptr);
}

std::string BesideThisBinary(const std::string& relative) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / relative).lexically_normal().string();
}

bool Answers(const std::string& path, int socket_type) {
  UniqueFd socket(::socket(AF_UNIX, socket_type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchDaemon>> BenchDaemon::StartKvarved(
    uint64_t capacity_bytes, bool prefault, const std::vector<std::string>& flags) {
  std::vector<std::string> command = {
      BesideThisBinary("../bin/kvarved"),
      "--socket.path=SOCKET",
      absl::StrFormat("--arena.capacity_bytes=%d", capacity_bytes),
      absl::StrFormat("--arena.prefault=%s", prefault ? "true" : "false"),
      "--metrics.listen=off",
      "--log.level=warning"};
  command.insert(command.end(), flags.begin(), flags.end());
  return Start(std::move(command), SOCK_SEQPACKET);
}

absl::StatusOr<std::unique_ptr<BenchDaemon>> BenchDaemon::StartSparse(uint64_t capacity_bytes) {
  return Start(
      {BesideThisBinary("kvarve_sparse_daemon"), "SOCKET", absl::StrFormat("%d", capacity_bytes)},
      SOCK_SEQPACKET);
}

absl::StatusOr<std::unique_ptr<BenchDaemon>> BenchDaemon::Start(std::vector<std::string> command,
                                                                int socket_type) {
  std::string pattern = (std::filesystem::temp_directory_path() / "kvarve-bench-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    return absl::UnavailableError(absl::StrFormat("mkdtemp: %s", std::strerror(errno)));
  }
  std::unique_ptr<BenchDaemon> daemon(new BenchDaemon());
  daemon->folder_ = pattern;
  daemon->socket_path_ = pattern + "/daemon.sock";
  for (std::string& word : command) {
    const size_t at = word.find("SOCKET");
    if (at != std::string::npos) word.replace(at, 6, daemon->socket_path_);
  }
  KV_RETURN_IF_ERROR(daemon->Spawn(command));
  KV_RETURN_IF_ERROR(daemon->WaitReady(socket_type));
  return daemon;
}

absl::Status BenchDaemon::Spawn(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  argv.reserve(command.size() + 1);
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const std::string log = folder_ + "/log";
  const int parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) return absl::UnavailableError(absl::StrFormat("fork: %s", std::strerror(errno)));
  if (pid_ == 0) {  // only calls that are safe between fork and exec
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  return absl::OkStatus();
}

absl::Status BenchDaemon::WaitReady(int socket_type) {
  for (const double start = NowMicros(); NowMicros() - start < kStartMicrosMax; Pause()) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      std::stringstream text;
      text << std::ifstream(folder_ + "/log").rdbuf();
      return absl::UnavailableError(absl::StrFormat(
          "it ended with %d: %s", WIFEXITED(status) ? WEXITSTATUS(status) : -1, text.str()));
    }
    if (Answers(socket_path_, socket_type)) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("its socket did not answer");
}

BenchDaemon::~BenchDaemon() {
  if (pid_ > 0) {
    ::kill(pid_, SIGTERM);
    const double start = NowMicros();
    while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
      if (NowMicros() - start > kStopMicrosMax) ::kill(pid_, SIGKILL);
      Pause();
    }
  }
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

}  // namespace kvarve::perf
