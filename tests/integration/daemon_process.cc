#include "tests/integration/daemon_process.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "storage/base/status_macros.h"
#include "storage/testing/free_port.h"

namespace kvarve::testing {

DaemonProcess::DaemonProcess(std::vector<std::string> flags)
    : port_(FreePort()), flags_(std::move(flags)) {
  KV_CHECK(port_ != 0);
  std::string pattern = "/tmp/kvarve-test-XXXXXX";
  KV_CHECK(::mkdtemp(pattern.data()) != nullptr);
  folder_ = pattern;
}

DaemonProcess::~DaemonProcess() {
  Kill();
  std::filesystem::remove_all(folder_);
}

std::string DaemonProcess::Write(const std::string& name, const std::string& text) const {
  const std::string path = folder_ + "/" + name, before = path + ".new";
  std::ofstream(before) << text;
  ::chmod(before.c_str(), 0600);
  std::filesystem::rename(before, path);
  return path;
}

void DaemonProcess::Start() {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> words = {(self.parent_path() / "../bin/kvarved").string(),
                                    "--socket.path=" + folder_ + "/kvarved.sock",
                                    "--arena.capacity_bytes=256MiB",
                                    "--arena.prefault=false",
                                    "--metrics.listen=off",
                                    "--log.level=error",
                                    "--tenant.state_dir=" + folder_ + "/state",
                                    "--rpc.listen=" + address()};
  words.insert(words.end(), flags_.begin(), flags_.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = ::fork();
  KV_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
}

void DaemonProcess::Kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace kvarve::testing
