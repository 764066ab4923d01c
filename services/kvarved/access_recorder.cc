#include "services/kvarved/access_recorder.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/block/sha256.h"
#include "storage/policy/access_log.h"

namespace kvarve {
namespace {

constexpr int64_t kWriteEveryNanos = 200'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<AccessRecorder>> AccessRecorder::Create(const std::string& path,
                                                                       uint64_t bytes_max) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid() && errno == EEXIST) {
    return absl::AlreadyExistsError(path +
                                    " exists: move it away, or name another file as record.path");
  }
  if (!file.valid()) {
    return absl::UnavailableError(
        absl::StrFormat("record.path: cannot make %s: %s", path, std::strerror(errno)));
  }
  std::unique_ptr<AccessRecorder> recorder(new AccessRecorder(path, std::move(file), bytes_max));
  if (!recorder->Append(AccessLogHeader())) {
    return absl::UnavailableError(
        absl::StrFormat("record.path: cannot write %s: %s", path, std::strerror(errno)));
  }
  return recorder;
}

AccessRecorder::AccessRecorder(std::string path, UniqueFd file, uint64_t bytes_max)
    : path_(std::move(path)),
      file_(std::move(file)),
      bytes_max_(bytes_max),
      start_nanos_(SystemClock::Get()->NowNanos()) {
  KV_CHECK(::getrandom(salt_.data(), salt_.size(), 0) == static_cast<ssize_t>(salt_.size()));
  thread_ = std::thread([this] { Run(); });
}

AccessRecorder::~AccessRecorder() {
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void AccessRecorder::Record(const CacheAccess& access) {
  if (access.keys.empty()) return;
  Queued queued;
  queued.micros = static_cast<uint64_t>(SystemClock::Get()->NowNanos() - start_nanos_) / 1000;
  queued.request = access.request_id;
  queued.ns = access.ns;
  queued.has_parent = access.parent != nullptr;
  if (queued.has_parent) queued.parent = *access.parent;
  queued.first_depth = access.first_depth;
  queued.keys.assign(access.keys.begin(), access.keys.end());
  {
    MutexLock lock(&mutex_);
    if (queued_keys_ + queued.keys.size() <= kQueuedKeysMax) {
      queued_keys_ += queued.keys.size();
      queue_.push_back(std::move(queued));
      if (queued_keys_ >= kQueuedKeysMax / 2) changed_.notify_all();
      return;
    }
  }
  Drop(1, "more is asked for than the disk takes");
}

RecordStats AccessRecorder::Stats() const {
  MutexLock lock(&mutex_);
  return stats_;
}

void AccessRecorder::Drop(uint64_t accesses, const char* why) {
  bool is_first = false;
  {
    MutexLock lock(&mutex_);
    stats_.dropped += accesses;
    is_first = !std::exchange(has_warned_, true);
  }
  if (!is_first) return;
  KvLog(LogLevel::kWarning, "the access log leaves accesses out from here on",
        {{"path", path_}, {"reason", why}});
}

void AccessRecorder::Run() {
  for (bool is_last = false; !is_last;) {
    std::vector<Queued> queue;
    {
      MutexLock lock(&mutex_);
      const auto until =
          std::chrono::steady_clock::now() + std::chrono::nanoseconds(kWriteEveryNanos);
      while (!is_stopping_ && queued_keys_ < kQueuedKeysMax / 2 &&
             std::chrono::steady_clock::now() < until) {
        changed_.wait_until(mutex_, until);
      }
      is_last = is_stopping_;
      queue.swap(queue_);
      queued_keys_ = 0;
    }
    Write(queue);
  }
}

void AccessRecorder::Write(const std::vector<Queued>& queue) {
  std::string bytes;
  for (size_t i = 0; i < queue.size(); ++i) {
    const Queued& from = queue[i];
    Access access;
    access.micros = from.micros;
    if (from.request != 0) access.request = IdOf(from.ns, &from.request, sizeof(from.request));
    if (from.has_parent) access.parent = IdOf(from.ns, &from.parent, sizeof(from.parent));
    access.first_depth = from.first_depth;
    for (const BlockKey& key : from.keys) access.ids.push_back(IdOf(from.ns, &key, sizeof(key)));
    bytes.clear();
    AppendAccess(access, &bytes);
    if (!is_full_ && Append(bytes)) {
      MutexLock lock(&mutex_);
      ++stats_.accesses;
      continue;
    }
    is_full_ = true;  // part of a record may be there: it ends the log for who reads it
    return Drop(queue.size() - i, "the file has record.max_bytes, or cannot be written");
  }
}

// Not 0.
uint64_t AccessRecorder::IdOf(const NamespaceId& ns, const void* bytes, size_t size) const {
  Sha256 hash;
  hash.Update(salt_.data(), salt_.size());
  hash.Update(&ns, sizeof(ns));
  hash.Update(bytes, size);
  uint64_t id = 0;
  std::memcpy(&id, hash.Finish().data(), sizeof(id));
  return id == 0 ? 1 : id;
}

// False: it is full, or errno says why.
bool AccessRecorder::Append(std::string_view bytes) {
  {
    MutexLock lock(&mutex_);
    if (stats_.bytes + bytes.size() > bytes_max_) return false;
    stats_.bytes += bytes.size();
  }
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace kvarve
