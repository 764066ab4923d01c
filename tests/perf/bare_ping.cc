#include "tests/perf/bare_ping.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "storage/base/status_macros.h"
#include "tests/perf/bench_table.h"

namespace kvarve::perf {

BarePing::BarePing(size_t request_bytes, size_t reply_bytes)
    : request_(request_bytes), reply_(reply_bytes) {
  int pair[2];
  KV_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  socket_.reset(pair[0]);
  UniqueFd other(pair[1]);
  const int buffer_bytes = 1 << 20;
  for (int socket : pair) {
    ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(buffer_bytes));
  }
  pid_ = ::fork();
  KV_CHECK(pid_ >= 0);
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::close(pair[0]);
  while (::recv(other.get(), request_.data(), request_.size(), 0) > 0) {
    if (::send(other.get(), reply_.data(), reply_.size(), MSG_NOSIGNAL) < 0) break;
  }
  ::_exit(0);
}

BarePing::~BarePing() {
  socket_.reset();
  ::waitpid(pid_, nullptr, 0);
}

double BarePing::RoundTripMicros() {
  const double start = NowMicros();
  KV_CHECK(::send(socket_.get(), request_.data(), request_.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(request_.size()));
  KV_CHECK(::recv(socket_.get(), reply_.data(), reply_.size(), 0) ==
           static_cast<ssize_t>(reply_.size()));
  return NowMicros() - start;
}

}  // namespace kvarve::perf
