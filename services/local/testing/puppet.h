// Another process in a test: made by fork before the test starts any thread, it waits for words and
// answers them. Ends with the test, at the latest. THREADS: one owner; the constructor wants to be
// the only thread of the process.
#ifndef KVARVE_SERVICES_LOCAL_TESTING_PUPPET_H_
#define KVARVE_SERVICES_LOCAL_TESTING_PUPPET_H_

#include <sys/types.h>

#include <functional>
#include <string>

#include "storage/base/unique_fd.h"

namespace kvarve::testing {

class Puppet {
 public:
  // The child's end: words from and to the test.
  class Strings {
   public:
    explicit Strings(int socket) : socket_(socket) {}
    // The next word; "" when the test is gone.
    std::string Listen();
    void Say(const std::string& word);

   private:
    const int socket_;
  };

  // The child runs `act` and exits with 0.
  explicit Puppet(const std::function<void(Strings&)>& act);
  // Kills it, if it lives.
  ~Puppet();
  Puppet(const Puppet&) = delete;

  pid_t pid() const { return pid_; }
  void Tell(const std::string& word);
  std::string Hear();  // ends the process after 20 s of silence; "" when it is gone
  // Tell, then Hear.
  std::string Ask(const std::string& word);
  void Kill();  // SIGKILL, and waits for its end
  int Wait();   // for its end; its exit status

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
};

}  // namespace kvarve::testing

#endif  // KVARVE_SERVICES_LOCAL_TESTING_PUPPET_H_
