#include "services/local/testing/puppet.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "storage/base/status_macros.h"

namespace kvarve::testing {
namespace {

constexpr int kPatienceMillis = 20'000;

std::string ReceiveWord(int socket) {
  std::array<char, 4096> buffer;
  const ssize_t got = ::recv(socket, buffer.data(), buffer.size(), 0);
  return got > 0 ? std::string(buffer.data(), static_cast<size_t>(got)) : std::string();
}

void SendWord(int socket, const std::string& word) {
  KV_CHECK(!word.empty());
  [[maybe_unused]] const ssize_t sent = ::send(socket, word.data(), word.size(), MSG_NOSIGNAL);
}

}  // namespace

std::string Puppet::Strings::Listen() { return ReceiveWord(socket_); }
void Puppet::Strings::Say(const std::string& word) { SendWord(socket_, word); }

Puppet::Puppet(const std::function<void(Strings&)>& act) {
  int ends[2];
  KV_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  socket_.reset(ends[0]);
  UniqueFd theirs(ends[1]);
  pid_ = ::fork();
  KV_CHECK(pid_ >= 0);
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  socket_.reset();
  Strings strings(theirs.get());
  act(strings);
  ::_exit(0);
}

Puppet::~Puppet() { Kill(); }

void Puppet::Tell(const std::string& word) { SendWord(socket_.get(), word); }

std::string Puppet::Hear() {
  pollfd poll{socket_.get(), POLLIN, 0};
  KV_CHECK(::poll(&poll, 1, kPatienceMillis) == 1);
  return ReceiveWord(socket_.get());
}

std::string Puppet::Ask(const std::string& word) {
  Tell(word);
  return Hear();
}

void Puppet::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  Wait();
}

int Puppet::Wait() {
  int status = 0;
  KV_CHECK(::waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return status;
}

}  // namespace kvarve::testing
