#include "services/local/reaper.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/local/thread.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr uint64_t kWakeSerial = 0;  // processes count from 1
constexpr int kEventsPerWait = 64;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

SessionToken RandomToken() {
  SessionToken token;
  KV_CHECK(::getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size()));
  return token;
}

// Takes the same time wherever the two differ.
bool EqualTokens(const SessionToken& a, const SessionToken& b) {
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = difference | (a[i] ^ b[i]);
  return difference == 0;
}

bool IsGone(pid_t pid) { return pid <= 0 || (::kill(pid, 0) != 0 && errno == ESRCH); }

// The session's thread sees the end of its connection.
void Disconnect(const SessionRecord& record) {
  if (record.socket.valid()) ::shutdown(record.socket.get(), SHUT_RDWR);
  if (record.mailbox != nullptr) record.mailbox->RingForSocket();
}

}  // namespace

Reaper::Reaper(const LocalServerOptions* options, Cache* cache, Counters* counters)
    : options_(*options),
      cache_(cache),
      counters_(counters),
      staging_(options->staging_bytes_total),
      live_of_tenant_(options->quotas, options->default_quota, options->max_sessions) {}

Reaper::~Reaper() { Stop(); }

absl::Status Reaper::Start() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeSerial;
  if (!epoll_.valid() || !wake_.valid() ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    return absl::UnavailableError(absl::StrCat("reaper: ", std::strerror(errno)));
  }
  KV_ASSIGN_OR_RETURN(thread_, StartThread("kv-reaper", [this] { Run(); }));
  started_ = true;
  return absl::OkStatus();
}

void Reaper::Stop() {
  if (!std::exchange(started_, false)) return;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    for (auto& [id, record] : live_) {
      record->stop = true;
      Disconnect(*record);
    }
    while (!live_.empty()) changed_.wait(mutex_);
    done_ = true;
  }
  Wake();
  ::pthread_join(thread_, nullptr);
  JoinEnded();
  Released released;
  {
    MutexLock lock(&mutex_);
    for (auto& [id, record] : ended_) {
      GiveUpMemory(record, &released);
      GiveUpLeases(record, &released);
    }
    ended_.clear();
    processes_.clear();
  }
  Finish(released);
}

absl::Status Reaper::CheckLimits(uid_t uid, Refusal* refusal) {
  if (stopping_) return absl::UnavailableError("the daemon stops");
  if (live_.size() >= options_.max_sessions || ended_.size() >= kMaxEndedSessions) {
    *refusal = Refusal::kSessions;
    return absl::ResourceExhaustedError(absl::StrCat("this daemon serves ", live_.size(),
                                                     " sessions and keeps ", ended_.size(),
                                                     " that ended without BYE; no more are taken "
                                                     "(limits.sessions)"));
  }
  const auto of_uid = live_of_uid_.find(uid);
  if (of_uid != live_of_uid_.end() && of_uid->second >= options_.max_sessions_per_uid) {
    *refusal = Refusal::kSessionsOfUid;
    return absl::ResourceExhaustedError(absl::StrCat("uid ", uid, " has ", of_uid->second,
                                                     " sessions, the most that one user may have "
                                                     "(limits.sessions_per_uid)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SessionRecord>> Reaper::Admit(Peer peer, UniqueFd* socket,
                                                             std::string tenant, Refusal* refusal) {
  uint64_t lease_bytes_max = options_.lease_bytes_per_process;
  if (lease_bytes_max == 0) lease_bytes_max = cache_->Stats().arena.capacity_bytes / 4;
  auto record = std::make_shared<SessionRecord>();
  record->token = RandomToken();
  record->gid = peer.gid;
  record->tenant = std::move(tenant);
  MutexLock lock(&mutex_);
  KV_RETURN_IF_ERROR(CheckLimits(peer.uid, refusal));
  record->process = ProcessOf(std::move(peer), lease_bytes_max);
  if (record->process->ended >= options_.max_ended_per_process) {
    *refusal = Refusal::kEndedOfProcess;
    return absl::ResourceExhaustedError(
        absl::StrCat(record->process->ended,
                     " earlier sessions of this process ended without BYE and are kept until it "
                     "exits; no more are taken"));
  }
  if (const absl::Status entered = live_of_tenant_.Enter(record->tenant); !entered.ok()) {
    *refusal = Refusal::kSessionsOfTenant;
    return entered;
  }
  record->socket = std::move(*socket);
  record->id = next_session_++;
  record->account.name = absl::StrCat("session ", record->id);
  record->account.parent = &record->process->account;
  record->copies.name = absl::StrCat("copies of session ", record->id);
  record->copies.exempt = true;
  ++record->process->live;
  ++live_of_uid_[record->process->uid];
  live_.emplace(record->id, record);
  return record;
}

Reaper::ProcessPtr Reaper::ProcessOf(Peer peer, uint64_t lease_bytes_max) {
  for (const auto& [serial, process] : processes_) {
    if (process->uid != peer.uid || process->exited) continue;
    if (process->pidfd_inode != 0 && process->pidfd_inode == peer.pidfd_inode) return process;
    // Without pidfs a number may be used again: then the old process's pidfd says so.
    if (peer.pidfd_inode == 0 && peer.pid > 0 && process->pid == peer.pid &&
        !(process->pidfd.valid() && HasExited(process->pidfd.get()))) {
      return process;
    }
  }
  auto process = std::make_shared<Process>(options_.staging_bytes_per_process, &staging_);
  process->serial = next_process_++;
  process->pid = peer.pid;
  process->uid = peer.uid;
  process->pidfd_inode = peer.pidfd_inode;
  process->pidfd = std::move(peer.pidfd);
  process->account.name = absl::StrCat("process ", process->pid, " of uid ", process->uid);
  process->account.bytes_max = lease_bytes_max;
  if (process->pidfd.valid()) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = process->serial;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, process->pidfd.get(), &event) != 0) {
      process->pidfd.reset();  // watched by the clock instead
    }
  }
  processes_.emplace(process->serial, process);
  return process;
}

void Reaper::Adopt(const RecordPtr& record, pthread_t thread) {
  {
    MutexLock lock(&mutex_);
    threads_.emplace(record->id, thread);
  }
  Wake();  // it may have ended before
}

void Reaper::SetEngine(SessionRecord* record, std::string engine_id) {
  MutexLock lock(&mutex_);
  record->engine_id = std::move(engine_id);
}

void Reaper::SetMailbox(SessionRecord* record, std::shared_ptr<local::Mailbox> mailbox) {
  MutexLock lock(&mutex_);
  record->mailbox = std::move(mailbox);
  record->mailbox->RingForSocket();  // something may have ended the session before
}

SessionEnd Reaper::End(const RecordPtr& record, SessionEnd how) {
  Released released;
  UniqueFd socket;
  // From before anybody may let go of them.
  const bool leased = how != SessionEnd::kBye && cache_->Quarantine(&record->account) > 0;
  record->holds_leases = leased;
  {
    MutexLock lock(&mutex_);
    const ProcessPtr process = record->process;
    if (record->bye) {
      how = SessionEnd::kBye;
    } else if (record->stop) {
      how = SessionEnd::kStop;
    } else if (how == SessionEnd::kHangup && process->exited) {
      how = SessionEnd::kProcessExit;
    }
    if (record->welcomed) counters_->Ended(how);
    record->live = false;
    socket = std::move(record->socket);
    record->mailbox = nullptr;
    live_.erase(record->id);
    --process->live;
    process->last_end_nanos = Now();
    const auto of_uid = live_of_uid_.find(process->uid);
    if (--of_uid->second == 0) live_of_uid_.erase(of_uid);
    live_of_tenant_.Leave(record->tenant);

    record->holds_memory = record->staging != nullptr || !record->chunks.empty();
    ++process->ended;
    ended_.emplace(record->id, record);
    if (how == SessionEnd::kBye || how == SessionEnd::kStop) {
      record->holds_leases = true;  // whether or not there are any
      GiveUpMemory(record, &released);
      GiveUpLeases(record, &released);
    } else if (record->holds_leases) {
      record->lease_waits = EngineOf(*record);
      for (const ProcessPtr& wait : record->lease_waits) ++wait->waits;
    }
    if (Settle(record, &released)) ended_.erase(record->id);
    ForgetIfUnused(process);
    changed_.notify_all();
  }
  Finish(released);
  // The cache knows an account from its first lease until this, though none is left.
  if (!leased) cache_->ReleaseAll(&record->account);
  cache_->ReleaseAll(&record->copies);
  // A client that sees the end knows that its leases have ended (or are quarantined).
  socket.reset();
  Wake();
  return how;
}

std::vector<Reaper::ProcessPtr> Reaper::EngineOf(const SessionRecord& record) const {
  std::vector<ProcessPtr> processes;
  const auto add = [&](const ProcessPtr& process) {
    if (process->exited) return;
    if (std::find(processes.begin(), processes.end(), process) == processes.end()) {
      processes.push_back(process);
    }
  };
  add(record.process);
  if (record.engine_id.empty()) return processes;
  for (const auto* table : {&live_, &ended_}) {
    for (const auto& [id, other] : *table) {
      if (other->engine_id == record.engine_id && other->process->uid == record.process->uid) {
        add(other->process);
      }
    }
  }
  return processes;
}

bool Reaper::Settle(const RecordPtr& record, Released* released) {
  if (record->holds_memory && record->process->exited) GiveUpMemory(record, released);
  if (record->holds_leases) {
    auto& waits = record->lease_waits;
    const auto exited = std::stable_partition(
        waits.begin(), waits.end(), [](const ProcessPtr& process) { return !process->exited; });
    std::for_each(exited, waits.end(), [](const ProcessPtr& process) { --process->waits; });
    waits.erase(exited, waits.end());
    if (waits.empty()) GiveUpLeases(record, released);
  }
  if (record->holds_memory || record->holds_leases) return false;
  --record->process->ended;
  return true;
}

void Reaper::GiveUpMemory(const RecordPtr& record, Released* released) {
  if (!std::exchange(record->holds_memory, false)) return;
  for (const uint64_t chunk : record->chunks) {
    const auto users = chunk_users_.find(chunk);
    if (--users->second == 0) chunk_users_.erase(users);
  }
  record->chunks.clear();
  if (record->staging != nullptr) released->staging.push_back(record);
}

void Reaper::GiveUpLeases(const RecordPtr& record, Released* released) {
  if (!std::exchange(record->holds_leases, false)) return;
  for (const ProcessPtr& process : record->lease_waits) {
    --process->waits;
    ForgetIfUnused(process);
  }
  record->lease_waits.clear();
  released->leases.push_back(record);
}

void Reaper::ForgetIfUnused(const ProcessPtr& process) {
  if (process->live == 0 && process->ended == 0 && process->waits == 0) {
    processes_.erase(process->serial);  // closing the pidfd ends its watch
  }
}

void Reaper::OnExit(const ProcessPtr& process, Released* released) {
  process->exited = true;
  // A pidfd stays readable for good.
  if (process->pidfd.valid()) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, process->pidfd.get(), nullptr);
  }
  for (const auto& [id, record] : live_) {
    if (record->process == process) Disconnect(*record);
  }
  for (auto it = ended_.begin(); it != ended_.end();) {
    const RecordPtr record = it->second;
    const bool gone = Settle(record, released);
    it = gone ? ended_.erase(it) : std::next(it);
    if (gone) ForgetIfUnused(record->process);
  }
  ForgetIfUnused(process);
}

void Reaper::Finish(const Released& released) {
  for (const RecordPtr& record : released.leases) cache_->ReleaseAll(&record->account);
  for (const RecordPtr& record : released.staging) record->staging.reset();
}

absl::Status Reaper::ByeFor(uid_t uid, SessionId id, const SessionToken& token) {
  Released released;
  {
    MutexLock lock(&mutex_);
    const auto live = live_.find(id);
    const auto ended = ended_.find(id);
    if (live == live_.end() && ended == ended_.end()) {
      return absl::NotFoundError(absl::StrCat("BYE: no session ", id));
    }
    const RecordPtr record = live != live_.end() ? live->second : ended->second;
    if (record->process->uid != uid || !EqualTokens(record->token, token)) {
      return absl::PermissionDeniedError(absl::StrCat("BYE: session ", id, " is another's"));
    }
    if (record->live) {
      record->bye = true;
      Disconnect(*record);
      return absl::OkStatus();
    }
    GiveUpMemory(record, &released);
    GiveUpLeases(record, &released);
    if (Settle(record, &released)) ended_.erase(id);
    ForgetIfUnused(record->process);
  }
  Finish(released);
  return absl::OkStatus();
}

void Reaper::AddChunks(SessionRecord* record, std::span<const uint64_t> chunks) {
  MutexLock lock(&mutex_);
  for (const uint64_t chunk : chunks) {
    if (record->chunks.insert(chunk).second) ++chunk_users_[chunk];
  }
}

void Reaper::RemoveChunk(SessionRecord* record, uint64_t chunk) {
  MutexLock lock(&mutex_);
  if (record->chunks.erase(chunk) == 0) return;
  const auto users = chunk_users_.find(chunk);
  if (--users->second == 0) chunk_users_.erase(users);
}

void Reaper::SweepChunks() {
  for (const ChunkInfo& chunk : cache_->DroppedChunks()) {
    {
      MutexLock lock(&mutex_);
      if (chunk_users_.contains(chunk.id)) continue;
    }
    // No session counts it, and none will: a session counts a chunk before it makes sure that it is
    // still there.
    cache_->ForgetDropped(chunk.id);
    Counters::Add(counters_->chunks_forgotten);
  }
}

void Reaper::CheckProcessesWithoutPidfd(Released* released) {
  std::vector<ProcessPtr> gone;
  for (const auto& [serial, process] : processes_) {
    if (process->pidfd.valid() || process->exited || process->live > 0) continue;
    if (Now() - process->last_end_nanos < options_.no_pidfd_nanos || !IsGone(process->pid)) {
      continue;
    }
    gone.push_back(process);
  }
  for (const ProcessPtr& process : gone) OnExit(process, released);
}

void Reaper::JoinEnded() {
  std::vector<pthread_t> ended;
  {
    MutexLock lock(&mutex_);
    for (auto it = threads_.begin(); it != threads_.end();) {
      if (live_.contains(it->first)) {
        ++it;
      } else {
        ended.push_back(it->second);
        it = threads_.erase(it);
      }
    }
  }
  for (const pthread_t thread : ended) ::pthread_join(thread, nullptr);
}

void Reaper::Wake() {
  const uint64_t one = 1;
  // Full is as good as written.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

void Reaper::Run() {
  std::array<epoll_event, kEventsPerWait> events;
  int64_t next_round = Now();
  for (bool done = false; !done;) {
    const int64_t wait_millis = std::max<int64_t>(0, (next_round - Now()) / 1'000'000 + 1);
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), kEventsPerWait, static_cast<int>(wait_millis));
    Released released;
    {
      MutexLock lock(&mutex_);
      for (int i = 0; i < count; ++i) {
        uint64_t value;
        if (events[i].data.u64 == kWakeSerial) {
          [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &value, sizeof(value));
          continue;
        }
        const auto process = processes_.find(events[i].data.u64);
        if (process != processes_.end()) OnExit(ProcessPtr(process->second), &released);
      }
      done = done_;
    }
    Finish(released);
    JoinEnded();
    if (Now() < next_round) continue;
    next_round = Now() + options_.reaper_nanos;
    cache_->ExpireHolds();
    SweepChunks();
    Released timed;
    {
      MutexLock lock(&mutex_);
      CheckProcessesWithoutPidfd(&timed);
    }
    Finish(timed);
  }
}

void Reaper::CopyTo(LocalStats* stats) const {
  stats->staging_bytes = staging_.used();
  MutexLock lock(&mutex_);
  stats->sessions = live_.size();
  stats->sessions_of_tenant = live_of_tenant_.Used();
  stats->ended_sessions = ended_.size();
  stats->processes = processes_.size();
}

}  // namespace kvarve
