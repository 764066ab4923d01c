#include "gpu/bench/bench_steps.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string_view>

#include "absl/strings/str_format.h"
#include "storage/base/unique_fd.h"

namespace kvarve::gpu_bench {
namespace {

using Time = std::chrono::steady_clock;

constexpr char kEnd = '!';             // begins the line by which a step says how it ended
constexpr double kBurySeconds = 2;     // then a process that the kernel holds is left alone
constexpr double kLeastSeconds = 0.5;  // with less a step need not begin
constexpr int kTickMillis = 20;

double SecondsSince(Time::time_point begin) {
  return std::chrono::duration<double>(Time::now() - begin).count();
}

void WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

[[noreturn]] void RunHere(const Step& step, int to) {
  ::setpgid(0, 0);  // whatever it starts goes with it
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const absl::Status status = step.run([&](const Json& row) {
    Json line = {{"step", step.name}};
    line.update(row);
    WriteAll(to, line.dump() + "\n");
  });
  WriteAll(to, kEnd + (status.ok() ? std::string() : status.ToString()) + "\n");
  ::_exit(status.ok() ? 0 : 1);
}

// One step under way.
class Running {
 public:
  Running(const Step& step, double deadline, int out)
      : step_(step), deadline_(deadline), out_(out) {}

  // Its status.
  std::string Run() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return Ended("failed", "no pipe");
    from_.reset(ends[0]);
    UniqueFd to(ends[1]);
    pid_ = ::fork();
    if (pid_ < 0) return Ended("failed", "no process");
    if (pid_ == 0) RunHere(step_, to.get());
    to.reset();
    while (!gone_ && SecondsSince(begin_) < deadline_) Listen();
    if (!gone_) {
      ::kill(-pid_, SIGKILL);
      ::kill(pid_, SIGKILL);  // before it had a group
      const Time::time_point killed = Time::now();
      while (!gone_ && SecondsSince(killed) < kBurySeconds) Listen();
      return Ended("deadline", absl::StrFormat("not over after %g s%s", deadline_,
                                               gone_ ? "" : ", and not to be killed"));
    }
    ::kill(-pid_, SIGKILL);  // what it left behind
    if (said_end_ && error_.empty()) return Ended("ok", "");
    if (said_end_) return Ended("failed", error_);
    return Ended("failed", WIFSIGNALED(wait_) ? absl::StrFormat("signal %d", WTERMSIG(wait_))
                                              : absl::StrFormat("exit %d", WEXITSTATUS(wait_)));
  }

 private:
  // Its lines, or its end.
  void Listen() {
    pollfd ready{from_.get(), POLLIN, 0};
    ::poll(&ready, 1, kTickMillis);
    const bool gone = ::waitpid(pid_, &wait_, WNOHANG) == pid_;  // then all that it wrote is there
    char buffer[4096];
    while (ready.revents != 0) {
      const ssize_t n = ::read(from_.get(), buffer, sizeof buffer);
      if (n <= 0) break;
      text_.append(buffer, static_cast<size_t>(n));
      ready.revents = 0;
      ::poll(&ready, 1, 0);
    }
    PassOn();
    gone_ = gone;
  }

  void PassOn() {
    for (size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
      const std::string line = text_.substr(0, end + 1);
      text_.erase(0, end + 1);
      if (line[0] == kEnd) {
        said_end_ = true;
        error_ = line.substr(1, line.size() - 2);
      } else {
        ++rows_;
        WriteAll(out_, line);
      }
    }
  }

  std::string Ended(const std::string& status, const std::string& error) {
    Json line = {{"step", step_.name},
                 {"status", status},
                 {"seconds", SecondsSince(begin_)},
                 {"rows", rows_}};
    if (!error.empty()) line["error"] = error;
    WriteAll(out_, line.dump() + "\n");
    return status;
  }

  const Step& step_;
  const double deadline_;
  const int out_;
  const Time::time_point begin_ = Time::now();
  UniqueFd from_;
  pid_t pid_ = -1;
  int wait_ = 0, rows_ = 0;
  bool gone_ = false, said_end_ = false;
  std::string text_, error_;
};

}  // namespace

int RunSteps(const std::vector<Step>& steps, double total_seconds, int out) {
  const Time::time_point begin = Time::now();
  int bad = 0;
  for (const Step& step : steps) {
    const double left = total_seconds - SecondsSince(begin);
    if (left < kLeastSeconds) {
      WriteAll(out, Json({{"step", step.name}, {"status", "skipped"}}).dump() + "\n");
      ++bad;
      continue;
    }
    bad += Running(step, std::min(step.deadline_seconds, left), out).Run() == "ok" ? 0 : 1;
  }
  return bad;
}

}  // namespace kvarve::gpu_bench
