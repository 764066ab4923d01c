#include "services/local/acceptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/local/messages.h"
#include "client/local/socket.h"
#include "services/local/thread.h"
#include "storage/base/abseil.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr int kStarvedMillis = 100;  // without descriptors, and without the reserve
constexpr int kAcceptsPerWake = 64;
constexpr int kUnreadDropped = 16;  // packets that a refused client may have sent before

UniqueFd OpenReserve() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

bool Contains(const auto& list, auto value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

Acceptor::Acceptor(int socket, const SessionContext& context, std::vector<gid_t> default_gids)
    : socket_(socket),
      context_(context),
      uids_(context.options.allowed_uids),
      gids_(context.options.allowed_gids) {
  if (uids_.empty() && gids_.empty()) {
    uids_ = {::geteuid()};
    gids_ = std::move(default_gids);
  }
}

Acceptor::~Acceptor() { Stop(); }

absl::Status Acceptor::Start() {
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  reserve_ = OpenReserve();
  if (!wake_.valid() || !reserve_.valid()) {
    return absl::UnavailableError(absl::StrCat("acceptor: ", std::strerror(errno)));
  }
  KV_ASSIGN_OR_RETURN(thread_, StartThread("kv-accept", [this] { Run(); }));
  started_ = true;
  return absl::OkStatus();
}

void Acceptor::Stop() {
  if (!std::exchange(started_, false)) return;
  const uint64_t one = 1;
  KV_CHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  ::pthread_join(thread_, nullptr);
}

void Acceptor::Run() {
  while (true) {
    pollfd polls[] = {{wake_.get(), POLLIN, 0}, {socket_, POLLIN, 0}};
    if (!reserve_.valid()) {
      reserve_ = OpenReserve();
      // Nothing to accept with: wait for the stop, or a while.
      if (!reserve_.valid()) {
        if (::poll(polls, 1, kStarvedMillis) > 0) return;
        continue;
      }
    }
    if (::poll(polls, 2, -1) < 0) continue;
    if (polls[0].revents != 0) return;
    AcceptAll();
  }
}

void Acceptor::AcceptAll() {
  for (int i = 0; i < kAcceptsPerWake; ++i) {
    UniqueFd socket(::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.valid()) {
      Admit(std::move(socket));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    const bool starved = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (!starved || !SpendReserve()) return;
  }
}

bool Acceptor::SpendReserve() {
  reserve_.reset();
  UniqueFd socket(::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.valid()) {
    Refuse(socket.get(), Refusal::kDescriptors,
           absl::ResourceExhaustedError("the daemon has no file descriptor left"));
  }
  const bool accepted = socket.valid();
  socket.reset();
  reserve_ = OpenReserve();
  return accepted && reserve_.valid();
}

absl::Status Acceptor::CheckAllowed(const Peer& peer) const {
  if (peer.uid == 0 && context_.options.admit_root) return absl::OkStatus();
  if (Contains(uids_, peer.uid) || Contains(gids_, peer.gid)) return absl::OkStatus();
  for (const gid_t gid : peer.groups) {
    if (Contains(gids_, gid)) return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("uid ", peer.uid, " gid ", peer.gid,
                   " may not use this daemon: allow it there, or join an allowed group"));
}

void Acceptor::Admit(UniqueFd socket) {
  absl::StatusOr<Peer> peer = IdentifyPeer(socket.get(), context_.options.pidfd_source);
  if (!peer.ok()) return;  // gone
  const absl::Status allowed = CheckAllowed(*peer);
  if (!allowed.ok()) return Refuse(socket.get(), Refusal::kNotAllowed, allowed);
  std::string tenant = context_.tenants->TenantOf(peer->uid, peer->gid, peer->groups);
  Refusal refusal = Refusal::kSessions;
  absl::StatusOr<std::shared_ptr<SessionRecord>> record =
      context_.reaper->Admit(*std::move(peer), &socket, std::move(tenant), &refusal);
  if (!record.ok()) return Refuse(socket.get(), refusal, record.status());
  absl::StatusOr<pthread_t> thread = StartThread(
      "kv-session", [context = context_, record = *record] { Session(context, record).Run(); });
  if (thread.ok()) return context_.reaper->Adopt(*record, *thread);
  Refuse((*record)->socket.get(), Refusal::kDescriptors, thread.status());
  context_.reaper->End(*record, SessionEnd::kBye);
}

void Acceptor::Refuse(int socket, Refusal refusal, const absl::Status& why) {
  context_.counters->Refused(refusal);
  KvLog(LogLevel::kWarning, "client refused",
        {{"reason", std::string(RefusalName(refusal))}, {"why", std::string(why.message())}});
  local::Send(socket, local::BuildError(0, why)).IgnoreError();
  // A HELLO left unread would reset the connection, and the client would not read why.
  ::shutdown(socket, SHUT_RD);
  char byte;
  for (int i = 0; i<kUnreadDropped&& ::recv(socket, &byte, 1, MSG_DONTWAIT)> 0; ++i) {
  }
}

}  // namespace kvarve
