#include "gpu/transfer/host_registry.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr std::chrono::milliseconds kAgain(20);  // after a capture got in the way

}  // namespace

std::string_view HostPathName(HostPath path) {
  switch (path) {
    case HostPath::kHost:
      return "host";
    case HostPath::kArena:
      return "arena";
    case HostPath::kStaging:
      return "staging";
    case HostPath::kWritable:
      return "writable";
  }
  return "";
}

HostPath ChooseHostPath(const ComputeDeviceInfo& device, bool is_pool_writable) {
  if (device.is_cpu) return HostPath::kHost;
  if (device.read_only_registration) return HostPath::kArena;
  return is_pool_writable ? HostPath::kWritable : HostPath::kStaging;
}

HostRegistry::HostRegistry(std::shared_ptr<ComputeDevice> device, uint64_t piece_bytes)
    : device_(std::move(device)), piece_bytes_(piece_bytes) {
  KV_CHECK(piece_bytes_ % kExtentBytes == 0 && piece_bytes_ > 0);
  if (!device_->info().is_cpu) thread_ = std::thread([this] { Run(); });
}

HostRegistry::~HostRegistry() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  MutexLock lock(&mutex_);
  for (const auto& [at, piece] : registered_) Unregister(piece);
}

void HostRegistry::Add(std::span<std::byte> memory, Use use) {
  if (device_->info().is_cpu) return;
  MutexLock lock(&mutex_);
  for (uint64_t at = 0; at < memory.size(); at += piece_bytes_) {
    waiting_.push_back(
        {memory.subspan(at, std::min(piece_bytes_, memory.size() - at)), memory.data(), use});
  }
  changed_.notify_all();
}

void HostRegistry::Remove(const std::byte* memory) {
  if (device_->info().is_cpu) return;
  MutexLock lock(&mutex_);
  auto forget = [&] {
    std::erase_if(waiting_, [&](const Piece& piece) { return piece.owner == memory; });
  };
  forget();
  auto is_registered = [&] {
    return std::any_of(registered_.begin(), registered_.end(),
                       [&](const auto& entry) { return entry.second.owner == memory; });
  };
  // What is being registered may be a piece of it.
  while (busy_ || (quiet_ && is_registered())) changed_.wait(mutex_);
  forget();  // a capture may have put it back
  std::vector<Piece> gone;
  std::erase_if(registered_, [&](const auto& entry) {
    if (entry.second.owner != memory) return false;
    gone.push_back(entry.second);
    return true;
  });
  // Others find their addresses meanwhile.
  busy_ = true;
  mutex_.unlock();
  for (const Piece& piece : gone) Unregister(piece);
  mutex_.lock();
  busy_ = false;
  changed_.notify_all();
}

std::optional<uint64_t> HostRegistry::AddressOf(const std::byte* at, uint64_t bytes) const {
  if (device_->info().is_cpu) return reinterpret_cast<uint64_t>(at);
  MutexLock lock(&mutex_);
  auto after = registered_.upper_bound(at);
  if (after == registered_.begin()) return std::nullopt;
  const Piece& piece = std::prev(after)->second;
  const auto offset = static_cast<uint64_t>(at - piece.memory.data());
  if (offset > piece.memory.size() || piece.memory.size() - offset < bytes) return std::nullopt;
  return piece.address + offset;
}

void HostRegistry::SetQuiet(bool is_quiet) {
  MutexLock lock(&mutex_);
  quiet_ = is_quiet;
  while (quiet_ && busy_) changed_.wait(mutex_);  // what has begun ends first
  changed_.notify_all();
}

bool HostRegistry::WaitIdle(int64_t timeout_nanos) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_nanos);
  MutexLock lock(&mutex_);
  while (busy_ || !waiting_.empty()) {
    if (changed_.wait_until(mutex_, deadline) == std::cv_status::timeout)
      return !busy_ && waiting_.empty();
  }
  return true;
}

HostRegistry::Stats HostRegistry::stats() const {
  MutexLock lock(&mutex_);
  Stats stats = stats_;
  stats.pieces = registered_.size();
  stats.waiting = waiting_.size();
  for (const auto& [at, piece] : registered_) stats.bytes += piece.memory.size();
  return stats;
}

absl::StatusOr<uint64_t> HostRegistry::Register(const Piece& piece) {
  const HostAccess access =
      piece.use == Use::kReadOnly ? HostAccess::kReadOnly : HostAccess::kReadWrite;
  const absl::StatusOr<uint64_t> address = device_->Register(piece.memory, access);
  if (piece.use != Use::kProtect || absl::IsUnavailable(address.status())) return address;
  // A registration keeps what it has; this process's own code must not write by accident.
  if (::mprotect(piece.memory.data(), piece.memory.size(), PROT_READ) == 0) return address;
  const int error = errno;
  if (address.ok()) Unregister(piece);
  return absl::InternalError(absl::StrCat("mprotect: ", std::strerror(error)));
}

void HostRegistry::Unregister(const Piece& piece) {
  for (;;) {
    const absl::Status status = device_->Unregister(piece.memory.data());
    if (!absl::IsUnavailable(status)) return;
    std::this_thread::sleep_for(kAgain);
  }
}

void HostRegistry::Run() {
  MutexLock lock(&mutex_);
  while (!stopped_) {
    if (quiet_ || busy_ || waiting_.empty()) {
      changed_.wait(mutex_);
      continue;
    }
    Piece piece = waiting_.front();
    waiting_.pop_front();
    busy_ = true;
    mutex_.unlock();
    const absl::StatusOr<uint64_t> address = Register(piece);
    if (!address.ok() && !absl::IsUnavailable(address.status())) {
      KvLog(LogLevel::kWarning, "kvarve: host memory is not registered with the device",
            {{"bytes", absl::StrCat(piece.memory.size())},
             {"why", std::string(address.status().message())}});
    }
    mutex_.lock();
    busy_ = false;
    if (address.ok()) {
      piece.address = *address;
      registered_.emplace(piece.memory.data(), piece);
    } else if (absl::IsUnavailable(address.status())) {
      waiting_.push_front(piece);
      stats_.last_error = std::string(address.status().message());
      changed_.wait_until(mutex_, std::chrono::steady_clock::now() + kAgain);
    } else {
      ++stats_.failed;
      stats_.last_error = std::string(address.status().message());
    }
    changed_.notify_all();
  }
}

}  // namespace kvarve
