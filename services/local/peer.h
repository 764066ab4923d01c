// Who is at the other end of a socket, by the kernel's word: credentials of the process that
// connected, and a pidfd that says when it is gone. THREADS: any.  BLOCKS: never.
#ifndef KVARVE_SERVICES_LOCAL_PEER_H_
#define KVARVE_SERVICES_LOCAL_PEER_H_

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "services/local/options.h"
#include "storage/base/unique_fd.h"

namespace kvarve {

struct Peer {
  pid_t pid = 0;  // 0: in a pid namespace that is not visible here
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary
  UniqueFd pidfd;             // may be invalid
  uint64_t pidfd_inode = 0;   // names the process for good where the kernel has pidfs (6.9); else 0
};

// Unavailable: the peer is gone already.
absl::StatusOr<Peer> IdentifyPeer(int socket, PidfdSource source);

// True when the pidfd's process has exited.
bool HasExited(int pidfd);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_LOCAL_PEER_H_
