// Accepts connections: who is it, may they come in, is there room. Each admitted one gets a
// session's thread.
//
// Without free descriptors a reserve is spent to accept and close at once, so that a client learns
// of it and this thread never spins. THREADS: Run in one, Stop in another.
#ifndef KVARVE_SERVICES_LOCAL_ACCEPTOR_H_
#define KVARVE_SERVICES_LOCAL_ACCEPTOR_H_

#include <pthread.h>

#include <vector>

#include "absl/status/status.h"
#include "services/local/peer.h"
#include "services/local/session.h"
#include "storage/base/unique_fd.h"

namespace kvarve {

class Acceptor {
 public:
  // `socket` listens, non-blocking; it and the context outlive the acceptor.
  Acceptor(int socket, const SessionContext& context, std::vector<gid_t> default_gids);
  ~Acceptor();

  absl::Status Start();
  void Stop();

 private:
  void Run();
  void AcceptAll();
  // False: no descriptor is left for another try now.
  bool SpendReserve();
  void Admit(UniqueFd socket);
  absl::Status CheckAllowed(const Peer& peer) const;
  void Refuse(int socket, Refusal refusal, const absl::Status& why);

  const int socket_;
  const SessionContext context_;
  std::vector<uid_t> uids_;
  std::vector<gid_t> gids_;
  UniqueFd wake_, reserve_;
  pthread_t thread_{};
  bool started_ = false;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_LOCAL_ACCEPTOR_H_
