#include "tests/perf/bare_ping.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "storage/base/status_macros.h"
#include "tests/perf/bench_table.h"

namespace kvarve::perf {

BarePing::BarePing(Options options)
    : options_(std::move(options)), request_(options_.request_bytes), reply_(options_.reply_bytes) {
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
  Answer(other.get());
}

void BarePing::Answer(int socket) {
  while (true) {
    const ssize_t got = ::recv(socket, request_.data(), request_.size(), 0);
    if (got <= 0) break;
    if (options_.work) options_.work(request_, reply_);
    if (::send(socket, reply_.data(), reply_.size(), MSG_NOSIGNAL) < 0) break;
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
