#include "services/auth/authenticator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/identity/certificate.h"
#include "client/identity/token.h"
#include "services/auth/auth_files.h"
#include "services/auth/recent.h"
#include "storage/base/log.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr std::string_view kScheme = "Bearer ";
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kRememberNanos = 60 * kSecond;
constexpr size_t kMaxRemembered = 4096;

int64_t SystemSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

AuthFault FaultOf(TokenFault fault) {
  switch (fault) {
    case TokenFault::kNone:
      break;
    case TokenFault::kMalformed:
      return AuthFault::kMalformed;
    case TokenFault::kAlgorithm:
      return AuthFault::kAlgorithm;
    case TokenFault::kUnknownKey:
      return AuthFault::kUnknownKey;
    case TokenFault::kSignature:
      return AuthFault::kSignature;
    case TokenFault::kClaims:
      return AuthFault::kClaims;
    case TokenFault::kExpired:
      return AuthFault::kExpired;
    case TokenFault::kNotYetValid:
      return AuthFault::kNotYetValid;
    case TokenFault::kAudience:
      return AuthFault::kAudience;
  }
  return AuthFault::kMalformed;
}

// The token of "Bearer TOKEN"; the scheme's name is case-insensitive (RFC 9110).
std::optional<std::string_view> BearerOf(std::string_view authorization) {
  if (authorization.size() <= kScheme.size()) return std::nullopt;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if ((authorization[i] | 0x20) != (kScheme[i] | 0x20)) return std::nullopt;
  }
  return authorization.substr(kScheme.size());
}

struct Refusal {
  AuthFault fault;
  absl::Status status;
};
template <typename T>
struct Answer {
  std::optional<T> value;
  Refusal refusal{AuthFault::kMalformed, absl::OkStatus()};
  Answer(T good) : value(std::move(good)) {}        // NOLINT: as StatusOr does
  Answer(Refusal bad) : refusal(std::move(bad)) {}  // NOLINT
};

// Why one who was let in may not have what it wants of blocks.
AuthFault OfBlocks(const Caller& caller) {
  return caller.role == Role::kClient ? AuthFault::kVerb : AuthFault::kRole;
}

Refusal Refused(AuthFault fault, std::string_view why) {
  return {fault, absl::UnauthenticatedError(absl::StrFormat("%s", why))};
}

struct SeenCertificate {
  absl::StatusOr<CertificateIdentity> identity = CertificateIdentity();
  std::string fingerprint;
  int64_t not_after = 0;
};

struct SeenToken {
  std::optional<TokenClaims> claims;  // none: the shared token
  uint64_t version = 0;               // of the files that it was good by
  int64_t until_nanos = 0;            // then, or with other files, it is verified anew
};

}  // namespace

struct Authenticator::Rep {
  explicit Rep(const AuthOptions& with)
      : options(with),
        clock(with.clock != nullptr ? with.clock : SystemClock::Get()),
        files(with.token_file, with.keys_file, with.revocations_file),
        refusals(clock) {}

  int64_t NowSeconds() const {
    return options.now_seconds ? options.now_seconds() : SystemSeconds();
  }
  Answer<Caller> Decide(const Presented& presented);
  Answer<SeenCertificate> CheckCertificate(std::string_view pem, const AuthFacts& facts);
  Answer<SeenToken> CheckToken(const Presented& presented, const AuthFacts& facts);
  Answer<SeenToken> VerifyAnew(std::string_view token, const Digest& digest,
                               const Presented& presented, const AuthFacts& facts, bool was_good);
  Answer<Caller> ClientOf(const SeenToken& token) const;
  void Reload();
  void Watch() ABSL_NO_THREAD_SAFETY_ANALYSIS;

  const AuthOptions options;
  const Clock* const clock;
  AuthFiles files;
  Refusals refusals;

  Mutex mutex;
  Recent<SeenToken> tokens ABSL_GUARDED_BY(mutex){kMaxRemembered};
  Recent<SeenCertificate> certificates ABSL_GUARDED_BY(mutex){kMaxRemembered};

  std::atomic<uint64_t> accepted{0}, tokens_verified{0}, reloads{0}, reload_failures{0};

  Mutex reload_mutex;                                    // one reload at a time
  std::string last_fault ABSL_GUARDED_BY(reload_mutex);  // logged once
  Mutex stop_mutex;
  CondVar stop_changed;
  bool stop ABSL_GUARDED_BY(stop_mutex) = false;
  std::thread watcher;
};

absl::Status Caller::May(Verb verb) const {
  if (role == Role::kClient && verbs.Has(verb)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrFormat("this %s may not %s here", RoleName(role), VerbName(verb)));
}

absl::Status Caller::MayGreet() const {
  if (role == Role::kClient && !verbs.empty()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrFormat("this %s sees no blocks here", RoleName(role)));
}

absl::Status Caller::MayAdminister() const {
  if (role == Role::kAdmin) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrFormat("a %s may not administer; that needs a certificate that names kvarve://admin",
                      RoleName(role)));
}

Answer<SeenCertificate> Authenticator::Rep::CheckCertificate(std::string_view pem,
                                                             const AuthFacts& facts) {
  if (pem.empty()) return Refused(AuthFault::kCertificate, "no client certificate");
  const Digest digest = DigestOfText(pem);
  SeenCertificate seen;
  bool is_known = false;
  {
    MutexLock lock(&mutex);
    if (const SeenCertificate* const found = certificates.Find(digest)) {
      seen = *found;
      is_known = true;
    }
  }
  if (!is_known) {
    const absl::StatusOr<CertificateFacts> read = ReadCertificate(pem);
    if (!read.ok()) return Refused(AuthFault::kCertificate, "a certificate that cannot be read");
    seen.identity = IdentityOfUris(read->uris, options.trust_domain);
    seen.fingerprint = read->fingerprint;
    seen.not_after = read->not_after;
    MutexLock lock(&mutex);
    certificates.Put(digest, seen);
  }
  if (!seen.identity.ok()) return Refusal{AuthFault::kCertificate, seen.identity.status()};
  // TLS looks at the time only when a connection begins.
  if (NowSeconds() > seen.not_after) {
    return Refused(AuthFault::kCertificate, "the certificate has expired; connect with a new one");
  }
  if (facts.revocations.certificates.contains(seen.fingerprint)) {
    return Refused(AuthFault::kRevoked, "the certificate is revoked");
  }
  return seen;
}

Answer<SeenToken> Authenticator::Rep::CheckToken(const Presented& presented,
                                                 const AuthFacts& facts) {
  if (!presented.authorization.has_value()) {
    return Refused(AuthFault::kNoToken, "no token; send the header authorization: Bearer TOKEN");
  }
  const std::optional<std::string_view> token = BearerOf(*presented.authorization);
  if (presented.repeated || !token.has_value()) {
    return Refused(AuthFault::kMalformed, "the header must be one authorization: Bearer TOKEN");
  }
  const Digest digest = DigestOfText(*token);
  std::optional<SeenToken> seen;
  {
    MutexLock lock(&mutex);
    if (const SeenToken* const found = tokens.Find(digest)) seen = *found;
  }
  if (!seen.has_value() || seen->version != facts.version ||
      seen->until_nanos <= clock->NowNanos()) {
    const bool was_good = seen.has_value();
    Answer<SeenToken> anew = VerifyAnew(*token, digest, presented, facts, was_good);
    if (!anew.value.has_value()) return anew;
    seen = std::move(anew.value);
  }
  if (seen->claims.has_value()) {
    if (NowSeconds() >= seen->claims->expires_at) {
      return Refused(AuthFault::kExpired, "token refused: it has expired; get a new one");
    }
    if (facts.revocations.tokens.contains(seen->claims->id)) {
      return Refused(AuthFault::kRevoked, "token refused: it is revoked");
    }
  }
  return *std::move(seen);
}

Answer<SeenToken> Authenticator::Rep::VerifyAnew(std::string_view token, const Digest& digest,
                                                 const Presented& presented, const AuthFacts& facts,
                                                 bool was_good) {
  const int64_t wait = was_good ? 0 : refusals.Wait(presented.peer);
  if (wait > 0) {
    return Refusal{AuthFault::kThrottled,
                   absl::ResourceExhaustedError(absl::StrFormat(
                       "too many refused calls of this address; the next try is free in %d s",
                       (wait + kSecond - 1) / kSecond))};
  }
  SeenToken seen;
  seen.version = facts.version;
  seen.until_nanos = clock->NowNanos() + kRememberNanos;
  const bool is_shared =
      facts.shared_token.has_value() && facts.shared_token->Matches(*presented.authorization);
  if (!is_shared) {
    if (facts.keys.empty()) return Refused(AuthFault::kWrongToken, "wrong token");
    tokens_verified.fetch_add(1, std::memory_order_relaxed);
    TokenFault fault = TokenFault::kNone;
    absl::StatusOr<TokenClaims> claims = VerifyToken(
        token, facts.keys, {options.token_audience, options.token_issuer}, NowSeconds(), &fault);
    if (!claims.ok()) return Refusal{FaultOf(fault), claims.status()};
    seen.claims = *std::move(claims);
  }
  MutexLock lock(&mutex);
  tokens.Put(digest, seen);
  return seen;
}

Answer<Caller> Authenticator::Rep::ClientOf(const SeenToken& token) const {
  if (!token.claims.has_value()) {
    return Caller{Role::kClient, options.default_tenant, VerbSet::All(), "shared token"};
  }
  return Caller{Role::kClient, token.claims->tenant, token.claims->verbs, token.claims->id};
}

Answer<Caller> Authenticator::Rep::Decide(const Presented& presented) {
  const std::shared_ptr<const AuthFacts> facts = files.Current();
  Caller caller;
  std::string certified;  // the tenant that the certificate says
  bool needs_token = true;
  if (options.tls) {
    Answer<SeenCertificate> seen = CheckCertificate(presented.certificate_pem, *facts);
    if (!seen.value.has_value()) return std::move(seen.refusal);
    caller.role = seen.value->identity->role;
    caller.name = seen.value->fingerprint;
    certified = seen.value->identity->tenant;
    needs_token = caller.role == Role::kClient && certified.empty();
    if (caller.role != Role::kClient) {
      // Whoever sends both is mistaken about what it is.
      if (!presented.authorization.has_value()) return caller;
      return Refused(AuthFault::kCertificate, "a peer's or admin's certificate takes no token");
    }
    caller.tenant = certified;
    caller.verbs = VerbSet::All();
  }
  if (needs_token || presented.authorization.has_value()) {
    Answer<SeenToken> token = CheckToken(presented, *facts);
    if (!token.value.has_value()) return std::move(token.refusal);
    Answer<Caller> client = ClientOf(*token.value);
    if (!certified.empty() && client.value->tenant != certified) {
      return Refused(AuthFault::kTenant, "the token is of another tenant than the certificate");
    }
    caller = *std::move(client.value);
  }
  if (caller.tenant != options.default_tenant && !options.tenants.contains(caller.tenant)) {
    return Refused(AuthFault::kTenant,
                   "this daemon does not know the tenant; name it in tenant.names there");
  }
  return caller;
}

void Authenticator::Rep::Reload() {
  MutexLock lock(&reload_mutex);
  const absl::StatusOr<int> changed = files.Reload();
  if (!changed.ok()) {
    reload_failures.fetch_add(1, std::memory_order_relaxed);
    if (std::string why(changed.status().message()); std::exchange(last_fault, why) != why) {
      KvLog(LogLevel::kError, "a file of credentials is bad; the old one stays in force",
            {{"why", std::string(changed.status().message())}});
    }
    return;
  }
  last_fault.clear();
  if (*changed == 0) return;
  reloads.fetch_add(1, std::memory_order_relaxed);
  KvLog(LogLevel::kInfo, "files of credentials read again");
}

void Authenticator::Rep::Watch() {
  MutexLock lock(&stop_mutex);
  while (!stop) {
    stop_changed.wait_for(stop_mutex, std::chrono::nanoseconds(options.reload_nanos));
    if (stop) return;
    stop_mutex.Unlock();
    Reload();
    stop_mutex.Lock();
  }
}

Authenticator::Authenticator(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}

absl::StatusOr<std::unique_ptr<Authenticator>> Authenticator::Create(const AuthOptions& options) {
  if (!options.tls && options.token_file.empty() && options.keys_file.empty()) {
    return absl::FailedPreconditionError(
        "without TLS the gRPC server needs tokens: set rpc.token_file or rpc.token_keys_file");
  }
  auto rep = std::make_unique<Rep>(options);
  const std::vector<FileFault> faults = rep->files.Load();
  if (!faults.empty()) return StatusOf(faults.front());
  rep->watcher = std::thread([raw = rep.get()] { raw->Watch(); });
  return std::unique_ptr<Authenticator>(new Authenticator(std::move(rep)));
}

Authenticator::~Authenticator() {
  {
    MutexLock lock(&rep_->stop_mutex);
    rep_->stop = true;
    rep_->stop_changed.notify_all();
  }
  rep_->watcher.join();
}

absl::StatusOr<Caller> Authenticator::Authenticate(const Presented& presented) {
  Answer<Caller> answer = rep_->Decide(presented);
  if (!answer.value.has_value()) {
    rep_->refusals.Add(answer.refusal.fault, presented.peer);
    return std::move(answer.refusal.status);
  }
  rep_->accepted.fetch_add(1, std::memory_order_relaxed);
  return *std::move(answer.value);
}

absl::Status Authenticator::May(const Caller& caller, Verb verb, std::string_view peer) {
  absl::Status answer = caller.May(verb);
  if (!answer.ok()) rep_->refusals.Add(OfBlocks(caller), peer, caller.name, caller.tenant);
  return answer;
}

absl::Status Authenticator::MayGreet(const Caller& caller, std::string_view peer) {
  absl::Status answer = caller.MayGreet();
  if (!answer.ok()) rep_->refusals.Add(OfBlocks(caller), peer, caller.name, caller.tenant);
  return answer;
}

absl::Status Authenticator::MayAdminister(const Caller& caller, std::string_view peer) {
  absl::Status answer = caller.MayAdminister();
  if (!answer.ok()) rep_->refusals.Add(AuthFault::kRole, peer, caller.name, caller.tenant);
  return answer;
}

void Authenticator::Reload() { rep_->Reload(); }

AuthStats Authenticator::Stats() const {
  AuthStats stats;
  stats.failures = rep_->refusals.Counts();
  stats.accepted = rep_->accepted.load(std::memory_order_relaxed);
  stats.tokens_verified = rep_->tokens_verified.load(std::memory_order_relaxed);
  stats.reloads = rep_->reloads.load(std::memory_order_relaxed);
  stats.reload_failures = rep_->reload_failures.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace kvarve
