// A real kvarved in a folder of its own, whose gRPC server listens on loopback; killed and started
// at will, and dies with its test.
//
// THREADS: one owner.  BLOCKS: Kill, for the process's end.
#ifndef KVARVE_TESTS_INTEGRATION_DAEMON_PROCESS_H_
#define KVARVE_TESTS_INTEGRATION_DAEMON_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace kvarve::testing {

class DaemonProcess {
 public:
  explicit DaemonProcess(std::vector<std::string> flags = {});
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;

  void Start();
  void Kill();  // SIGKILL
  pid_t pid() const { return pid_; }
  const std::string& folder() const { return folder_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void AddFlag(std::string flag) { flags_.push_back(std::move(flag)); }
  // In the folder, of mode 0600, by renaming.
  std::string Write(const std::string& name, const std::string& text) const;

 private:
  const int port_;
  std::string folder_;
  std::vector<std::string> flags_;
  pid_t pid_ = -1;
};

}  // namespace kvarve::testing

#endif  // KVARVE_TESTS_INTEGRATION_DAEMON_PROCESS_H_
