#include "client/rpc/client_files.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/identity/certificate.h"
#include "storage/base/abseil.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace kvarve::client {
namespace {

constexpr size_t kMaxTokenFileBytes = 4096;
constexpr size_t kMaxAuthorityBytes = 1 << 20;

// The first line of a token file.
absl::StatusOr<std::string> TokenOf(const std::string& path, std::string_view text) {
  text = text.substr(0, text.find('\n'));
  if (text.ends_with('\r')) text.remove_suffix(1);
  const bool is_plain = std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
  if (text.empty() || !is_plain) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: its first line must be a token of visible characters", path));
  }
  return std::string(text);
}

absl::Status About(const std::string& path, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrFormat("%s: %s", path, ToStd(why.message())));
}

// Whether the client may go there as it wants to.
absl::Status CheckTransport(const ClientOptions& options, const Endpoint& endpoint) {
  const ClientTls& tls = options.tls;
  const bool has_pair = !tls.certificate_file.empty() && !tls.key_file.empty();
  if (tls.certificate_file.empty() != tls.key_file.empty()) {
    return absl::InvalidArgumentError(
        "a client's certificate needs its key, and the key its certificate: set "
        "tls_certificate_file and "
        "tls_key_file, or neither");
  }
  if (endpoint.tls) {
    if (!tls.ca_file.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("kvarves://%s: whom to trust? Set tls_ca_file to the authorities of the "
                        "daemon's certificate",
                        endpoint.address));
  }
  if (has_pair || !tls.ca_file.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("kvarve://%s is plaintext, and files for TLS are set: write kvarves://%s, "
                        "or leave them out",
                        endpoint.address, endpoint.address));
  }
  if (IsLoopback(endpoint.address) || options.insecure_plaintext_off_loopback) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("kvarve://%s is plaintext to another host: write kvarves://%s for TLS; only "
                      "insecure_plaintext_off_loopback allows it",
                      endpoint.address, endpoint.address));
}

}  // namespace

bool IsLoopback(std::string_view address) {
  std::string host(address.substr(0, address.rfind(':')));
  if (host == "localhost" || host == "[::1]") return true;
  in_addr parsed;
  return ::inet_pton(AF_INET, host.c_str(), &parsed) == 1 && ntohl(parsed.s_addr) >> 24 == 127;
}

ClientFiles::ClientFiles(const ClientOptions& options, bool tls)
    : uses_tls_(tls),
      token_(options.token_file, kMaxTokenFileBytes, /*secret=*/true),
      authorities_(options.tls.ca_file, kMaxAuthorityBytes),
      certificate_(options.tls.certificate_file, kMaxCertificateBytes),
      key_(options.tls.key_file, kMaxCertificateBytes, /*secret=*/true) {}

absl::StatusOr<std::unique_ptr<ClientFiles>> ClientFiles::Open(const ClientOptions& options,
                                                               const Endpoint& endpoint) {
  KV_RETURN_IF_ERROR(CheckTransport(options, endpoint));
  std::unique_ptr<ClientFiles> files(new ClientFiles(options, endpoint.tls));
  MutexLock lock(&files->mutex_);
  KV_ASSIGN_OR_RETURN(Shown shown, files->Read(Shown()));
  files->shown_ = std::make_shared<const Shown>(std::move(shown));
  files->looked_ = SystemClock::Get()->NowNanos();
  return files;
}

absl::StatusOr<ClientFiles::Shown> ClientFiles::Read(const Shown& before) {
  Shown shown = before;
  ++shown.version;
  if (!token_.path().empty()) {
    KV_ASSIGN_OR_RETURN(const std::string text, token_.Read());
    KV_ASSIGN_OR_RETURN(shown.token, TokenOf(token_.path(), text));
  }
  if (!uses_tls_) return shown;
  const bool same = before.tls != nullptr && !authorities_.Changed() && !certificate_.Changed() &&
                    !key_.Changed() && !authorities_.failed();
  if (same) return shown;
  authorities_.set_failed(true);  // until all of them are good
  grpc::SslCredentialsOptions pem;
  KV_ASSIGN_OR_RETURN(pem.pem_root_certs, authorities_.Read());
  if (const absl::Status readable = ReadCertificate(pem.pem_root_certs).status(); !readable.ok()) {
    return About(authorities_.path(), readable);
  }
  if (!certificate_.path().empty()) {
    KV_ASSIGN_OR_RETURN(pem.pem_cert_chain, certificate_.Read());
    KV_ASSIGN_OR_RETURN(pem.pem_private_key, key_.Read());
    if (const absl::Status fits = CheckKeyPair(pem.pem_cert_chain, pem.pem_private_key);
        !fits.ok()) {
      return About(certificate_.path() + " and " + key_.path(), fits);
    }
  }
  authorities_.set_failed(false);
  shown.tls = grpc::SslCredentials(pem);
  return shown;
}

void ClientFiles::Look() {
  looked_ = SystemClock::Get()->NowNanos();
  const bool changed =
      (!token_.path().empty() && token_.Changed()) || authorities_.failed() ||
      (uses_tls_ && (authorities_.Changed() ||
                     (!certificate_.path().empty() && (certificate_.Changed() || key_.Changed()))));
  if (!changed) return;
  absl::StatusOr<Shown> shown = Read(*shown_);
  if (shown.ok()) {
    fault_.clear();
    shown_ = std::make_shared<const Shown>(*std::move(shown));
    return;
  }
  std::string why(ToStd(shown.status().message()));
  if (std::exchange(fault_, why) == why) return;
  KvLog(LogLevel::kWarning, "a file of credentials is bad; the old one stays in use",
        {{"why", fault_}});
}

std::shared_ptr<const ClientFiles::Shown> ClientFiles::Current() {
  MutexLock lock(&mutex_);
  if (SystemClock::Get()->NowNanos() - looked_ >= kLookNanos) Look();
  return shown_;
}

bool ClientFiles::Changed(uint64_t version) {
  MutexLock lock(&mutex_);
  Look();
  return shown_->version != version;
}

std::string ClientFiles::fault() const {
  MutexLock lock(&mutex_);
  return fault_;
}

}  // namespace kvarve::client
