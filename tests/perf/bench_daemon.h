// A daemon for a bench: a process of its own on a socket in a folder of its own, ended with the
// object.
//
// THREADS: one owner.  BLOCKS: Start until the socket answers, the destructor until the process is
// gone.
#ifndef KVARVE_TESTS_PERF_BENCH_DAEMON_H_
#define KVARVE_TESTS_PERF_BENCH_DAEMON_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kvarve::perf {

class BenchDaemon {
 public:
  // kvarved, as it is built beside this binary.
  static absl::StatusOr<std::unique_ptr<BenchDaemon>> StartKvarved(
      uint64_t capacity_bytes, bool prefault = true, const std::vector<std::string>& flags = {});
  // The same data plane over the same cache, but block bytes are not copied, so that its arena
  // takes no memory (sparse_daemon.cc): for indexes of more blocks than this machine can hold.
  static absl::StatusOr<std::unique_ptr<BenchDaemon>> StartSparse(uint64_t capacity_bytes);
  // Any server: `command`'s program is looked up in PATH; "SOCKET" in it stands for the socket's
  // path.
  static absl::StatusOr<std::unique_ptr<BenchDaemon>> Start(std::vector<std::string> command,
                                                            int socket_type);
  ~BenchDaemon();
  BenchDaemon(const BenchDaemon&) = delete;
  BenchDaemon& operator=(const BenchDaemon&) = delete;

  int pid() const { return pid_; }
  const std::string& socket_path() const { return socket_path_; }
  std::string endpoint() const { return "unix://" + socket_path_; }

 private:
  BenchDaemon() = default;

  absl::Status Spawn(const std::vector<std::string>& command);
  absl::Status WaitReady(int socket_type);

  int pid_ = -1;
  std::string folder_;
  std::string socket_path_;
};

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_BENCH_DAEMON_H_
