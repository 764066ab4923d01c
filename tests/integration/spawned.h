// This test's program again, as another process in one of the roles of a synthetic engine. Each has
// a socket to its test (words both ways, one a packet) and dies with it.
//
// THREADS: one owner.  BLOCKS: Hear, for a minute at most; Wait.
#ifndef KVARVE_TESTS_INTEGRATION_SPAWNED_H_
#define KVARVE_TESTS_INTEGRATION_SPAWNED_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "storage/base/unique_fd.h"

namespace kvarve::testing {

class Spawned {
 public:
  // Runs `--role=NAME ARGS...`; `peer` (or -1) becomes the role's second socket.
  Spawned(const std::string& role, const std::vector<std::string>& args, int peer = -1);
  ~Spawned() { Kill(); }
  Spawned(const Spawned&) = delete;

  pid_t pid() const { return pid_; }
  void Tell(const std::string& word);
  std::string Hear();  // "" when it is gone
  void Finish();       // asks it to end
  void Kill();         // SIGKILL, and waits for its end
  int Wait();          // closes the socket and waits; its exit status

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
};

// What a role gets: its sockets and arguments.
struct Stage {
  int test = -1, peer = -1;
  std::vector<std::string> args;
  std::string Listen() const;  // the next word; "" when the test is gone
  bool Listening() const;      // false: the test is gone
  void Say(const std::string& word) const;
};
using Role = std::function<int(const Stage&)>;

// Runs the role that the command line names, if it names one. False: this is the test itself.
bool RunRole(int argc, char** argv, const std::map<std::string, Role>& roles, int* exit_status);

}  // namespace kvarve::testing

#endif  // KVARVE_TESTS_INTEGRATION_SPAWNED_H_
