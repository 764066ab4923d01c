// The files that decide who is let in, as values that are replaced whole when a file changes: the
// shared token, the keys of signed tokens, the revocations.
// THREADS: Current any; Load and Reload one at a time.  BLOCKS: Load and Reload, on the files.
#ifndef KVARVE_SERVICES_AUTH_AUTH_FILES_H_
#define KVARVE_SERVICES_AUTH_AUTH_FILES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/identity/key_set.h"
#include "client/identity/revocations.h"
#include "client/identity/watched_file.h"
#include "services/auth/bearer_token.h"
#include "services/auth/file_fault.h"
#include "storage/base/mutex.h"

namespace kvarve {

struct AuthFacts {
  uint64_t version = 0;  // another at each reload
  std::optional<BearerToken> shared_token;
  KeySet keys;
  Revocations revocations;
};

class AuthFiles {
 public:
  // Empty paths: none.
  AuthFiles(std::string token_file, std::string keys_file, std::string revocations_file);

  // All of them, at the start; returns those that are bad, and then changes nothing. A revocation
  // file that is not there yet is an empty one.
  std::vector<FileFault> Load();
  // Those that changed; returns how many. The first error, when one is bad: what was read of it
  // before stays in force, and it is tried again at the next call.
  absl::StatusOr<int> Reload();

  std::shared_ptr<const AuthFacts> Current() const;

 private:
  absl::Status Read(WatchedFile* file, AuthFacts* facts) const;

  WatchedFile token_, keys_, revocations_;
  mutable Mutex mutex_;
  std::shared_ptr<const AuthFacts> facts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_AUTH_AUTH_FILES_H_
