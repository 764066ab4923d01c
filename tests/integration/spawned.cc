#include "tests/integration/spawned.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cstdlib>
#include <string_view>

#include "storage/base/status_macros.h"

extern char** environ;

namespace kvarve::testing {
namespace {

constexpr int kPatienceMillis = 60'000;
constexpr int kTestFd = 3;
constexpr int kPeerFd = 4;
constexpr std::string_view kRoleFlag = "--role=";

std::string ReceiveWord(int socket) {
  std::array<char, 4096> buffer;
  const ssize_t got = ::recv(socket, buffer.data(), buffer.size(), 0);
  return got > 0 ? std::string(buffer.data(), static_cast<size_t>(got)) : std::string();
}

void SendWord(int socket, const std::string& word) {
  [[maybe_unused]] const ssize_t sent = ::send(socket, word.data(), word.size(), MSG_NOSIGNAL);
}

}  // namespace

Spawned::Spawned(const std::string& role, const std::vector<std::string>& args, int peer) {
  int ends[2];
  KV_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  socket_.reset(ends[0]);
  // Above the numbers that they are moved to, or moving one would close another.
  const UniqueFd theirs(::fcntl(ends[1], F_DUPFD_CLOEXEC, 10));
  ::close(ends[1]);
  const UniqueFd peers(peer >= 0 ? ::fcntl(peer, F_DUPFD_CLOEXEC, 10) : -1);
  std::vector<std::string> words = {"/proc/self/exe", std::string(kRoleFlag) + role,
                                    std::to_string(::getpid())};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), kTestFd);
  if (peers.valid()) ::posix_spawn_file_actions_adddup2(&actions, peers.get(), kPeerFd);
  KV_CHECK(::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ) == 0);
  ::posix_spawn_file_actions_destroy(&actions);
}

void Spawned::Tell(const std::string& word) { SendWord(socket_.get(), word); }

std::string Spawned::Hear() {
  pollfd poll{socket_.get(), POLLIN, 0};
  KV_CHECK(::poll(&poll, 1, kPatienceMillis) == 1);
  return ReceiveWord(socket_.get());
}

void Spawned::Finish() { ::shutdown(socket_.get(), SHUT_WR); }

void Spawned::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  Wait();
}

int Spawned::Wait() {
  socket_.reset();
  int status = 0;
  KV_CHECK(::waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return status;
}

std::string Stage::Listen() const { return ReceiveWord(test); }

bool Stage::Listening() const {
  pollfd poll{test, POLLRDHUP, 0};
  return ::poll(&poll, 1, 0) == 0;
}

void Stage::Say(const std::string& word) const { SendWord(test, word); }

bool RunRole(int argc, char** argv, const std::map<std::string, Role>& roles, int* exit_status) {
  if (argc < 3 || !std::string_view(argv[1]).starts_with(kRoleFlag)) return false;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != std::atoi(argv[2])) std::exit(1);  // the test died before
  Stage stage;
  stage.test = kTestFd;
  stage.peer = ::fcntl(kPeerFd, F_GETFD) >= 0 ? kPeerFd : -1;
  for (int fd : {kTestFd, kPeerFd}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  stage.args.assign(argv + 3, argv + argc);
  *exit_status = roles.at(std::string(argv[1]).substr(kRoleFlag.size()))(stage);
  return true;
}

}  // namespace kvarve::testing
