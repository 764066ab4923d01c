#include "services/kvarved/policy_file.h"

#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "storage/base/log.h"
#include "storage/base/read_file.h"
#include "storage/base/unique_fd.h"
#include "storage/base/write_file.h"

namespace kvarve {
namespace {

constexpr size_t kMaxFileBytes = 16 << 20;

void WarnUntrained(const std::string& path, std::string reason) {
  KvLog(LogLevel::kWarning, "what the eviction policy had learned is not read",
        {{"path", path}, {"reason", std::move(reason)}});
}

}  // namespace

PolicyFile::PolicyFile(std::string path, Cache* cache, int64_t interval_nanos)
    : path_(std::move(path)), cache_(cache), interval_nanos_(interval_nanos) {
  Load();
  thread_ = std::thread([this] { Run(); });
}

PolicyFile::~PolicyFile() {
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  stops_.notify_all();
  thread_.join();
  SaveOrWarn();
}

void PolicyFile::Load() {
  UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) {
    if (errno != ENOENT) WarnUntrained(path_, std::strerror(errno));
    return;
  }
  std::string saved;
  if (!ReadToEnd(fd.get(), kMaxFileBytes, &saved)) {
    WarnUntrained(path_, std::strerror(errno));
    return;
  }
  if (cache_->SavePolicy().empty()) return;  // left by another policy, which may come back
  if (!cache_->LoadPolicy(saved)) WarnUntrained(path_, "it is damaged, or of another version");
}

absl::Status PolicyFile::Save() {
  const std::string learned = cache_->SavePolicy();
  return learned.empty() ? absl::OkStatus() : ReplaceFile(path_, learned);
}

void PolicyFile::SaveOrWarn() {
  const absl::Status saved = Save();
  if (saved.ok()) return;
  KvLog(LogLevel::kWarning, "what the eviction policy has learned is not written",
        {{"reason", saved.ToString()}});
}

void PolicyFile::Run() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      const auto until =
          std::chrono::steady_clock::now() + std::chrono::nanoseconds(interval_nanos_);
      while (!is_stopping_ && std::chrono::steady_clock::now() < until)
        stops_.wait_until(mutex_, until);
      if (is_stopping_) return;
    }
    SaveOrWarn();
  }
}

}  // namespace kvarve
