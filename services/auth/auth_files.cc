#include "services/auth/auth_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr size_t kMaxSharedTokenFileBytes = 4096;

template <typename T>
absl::StatusOr<T> Named(const WatchedFile& file, absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: %s", file.path(), value.status().message()));
}

// Of a file that is not there: how one is made.
absl::Status WithAdvice(const absl::Status& missing, std::string_view setting) {
  const std::string_view advice =
      setting == "rpc.token_file"        ? "; (umask 077; openssl rand -hex 32 > FILE) makes one"
      : setting == "rpc.token_keys_file" ? "; `kvarve token key` makes one"
                                         : "; `kvarve token revoke` makes one";
  return {missing.code(), absl::StrFormat("%s%s", missing.message(), advice)};
}

}  // namespace

AuthFiles::AuthFiles(std::string token_file, std::string keys_file, std::string revocations_file)
    : token_(std::move(token_file), kMaxSharedTokenFileBytes),
      keys_(std::move(keys_file), kMaxKeySetBytes),
      revocations_(std::move(revocations_file), kMaxRevocationBytes),
      facts_(std::make_shared<AuthFacts>()) {}

std::shared_ptr<const AuthFacts> AuthFiles::Current() const {
  MutexLock lock(&mutex_);
  return facts_;
}

absl::Status AuthFiles::Read(WatchedFile* file, AuthFacts* facts) const {
  absl::StatusOr<std::string> text = file->Read();
  if (file == &token_) {
    KV_ASSIGN_OR_RETURN(facts->shared_token, BearerToken::FromFile(file->path()));
    return absl::OkStatus();
  }
  if (file == &revocations_ && text.status().code() == absl::StatusCode::kNotFound) {
    // Before the first revocation only: a list that goes missing would let everybody in again.
    if (facts->revocations == Revocations()) return absl::OkStatus();
  }
  KV_RETURN_IF_ERROR(text.status());
  if (file == &keys_) {
    KV_ASSIGN_OR_RETURN(facts->keys, Named(*file, ParseKeySet(*text)));
  } else {
    KV_ASSIGN_OR_RETURN(facts->revocations, Named(*file, ParseRevocations(*text)));
  }
  return absl::OkStatus();
}

std::vector<FileFault> AuthFiles::Load() {
  auto facts = std::make_shared<AuthFacts>();
  std::vector<FileFault> faults;
  for (const auto& [setting, file] :
       {std::pair<std::string_view, WatchedFile*>("rpc.token_file", &token_),
        {"rpc.token_keys_file", &keys_},
        {"rpc.revocations_file", &revocations_}}) {
    if (file->path().empty()) continue;
    absl::Status read = Read(file, facts.get());
    if (absl::IsNotFound(read)) read = WithAdvice(read, setting);
    if (!read.ok()) faults.push_back({setting, std::move(read)});
  }
  if (!faults.empty()) return faults;
  facts->version = 1;
  MutexLock lock(&mutex_);
  facts_ = std::move(facts);
  return faults;
}

absl::StatusOr<int> AuthFiles::Reload() {
  auto facts = std::make_shared<AuthFacts>(*Current());
  int changed = 0;
  absl::Status first;
  for (WatchedFile* file : {&token_, &keys_, &revocations_}) {
    if (file->path().empty() || !(file->Changed() || file->failed())) continue;
    const absl::Status read = Read(file, facts.get());
    file->set_failed(!read.ok());
    first.Update(read);
    changed += read.ok();
  }
  if (changed > 0) {
    ++facts->version;
    MutexLock lock(&mutex_);
    facts_ = std::move(facts);
  }
  if (!first.ok()) return first;
  return changed;
}

}  // namespace kvarve
