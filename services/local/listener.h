// The plane's listening socket: one daemon a path. A lock file beside the socket (flock, so it ends
// with the process) decides who serves; a socket left by a dead daemon is replaced. THREADS: Bind
// changes the process's umask for a moment: call it before other threads make files.
#ifndef KVARVE_SERVICES_LOCAL_LISTENER_H_
#define KVARVE_SERVICES_LOCAL_LISTENER_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvarve {

class Listener {
 public:
  // The folder is made with mode 0750 when missing, the socket has mode 0660; both belong to
  // `group` when given. AlreadyExists: another daemon serves the path (the message names its pid).
  // FailedPrecondition: the folder lets everybody write, or the path is no socket. InvalidArgument:
  // a path too long for a socket.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const std::string& path,
                                                        std::optional<gid_t> group);
  // Removes the socket, if it is still the one that was made; the lock file stays.
  ~Listener();

  int fd() const { return socket_.get(); }  // non-blocking

 private:
  Listener() = default;

  std::string path_;
  UniqueFd lock_;
  UniqueFd socket_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// gid of the group "kvarve", when there is one that this process may give a file to: it is root or
// a member (in a container with a user of one's own it is neither).
std::optional<gid_t> KvarveGroup();

}  // namespace kvarve

#endif  // KVARVE_SERVICES_LOCAL_LISTENER_H_
