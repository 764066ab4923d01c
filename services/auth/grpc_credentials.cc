#include "services/auth/grpc_credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/conf.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/identity/certificate.h"
#include "client/identity/openssl_ptr.h"
#include "client/identity/watched_file.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr char kAuthorization[] = "authorization";
constexpr size_t kMaxAuthorityBytes = 1 << 20;

// Section "system_default" is what OpenSSL gives every new SSL_CTX, gRPC's too. gRPC sets the
// lowest version itself, so that one is switched off as an option, which stays.
constexpr char kTlsConfiguration[] =
    "openssl_conf = kvarve\n"
    "[kvarve]\nssl_conf = ssl\n"
    "[ssl]\nsystem_default = tls\n"
    "[tls]\nProtocol = ALL,-SSLv3,-TLSv1,-TLSv1.1,-TLSv1.2\nCipherString = DEFAULT:@SECLEVEL=2\n";

using ConfPtr = std::unique_ptr<CONF, OpensslFree<NCONF_free>>;
using SslContextPtr = std::unique_ptr<SSL_CTX, OpensslFree<SSL_CTX_free>>;

absl::Status RefuseOldTls() {
  static const bool done = [] {
    // First the system's own configuration: it would come later and replace ours.
    if (OPENSSL_init_ssl(OPENSSL_INIT_LOAD_CONFIG, nullptr) != 1) return false;
    const ConfPtr conf(NCONF_new(nullptr));
    const BioPtr text = ReadOnly(kTlsConfiguration);
    if (conf == nullptr || NCONF_load_bio(conf.get(), text.get(), nullptr) <= 0 ||
        CONF_modules_load(conf.get(), nullptr, 0) <= 0) {
      return false;
    }
    const SslContextPtr context(SSL_CTX_new(TLS_method()));
    return context != nullptr && (SSL_CTX_get_options(context.get()) & SSL_OP_NO_TLSv1_2) != 0;
  }();
  ERR_clear_error();
  if (done) return absl::OkStatus();
  return absl::FailedPreconditionError("OpenSSL does not refuse TLS 1.2 when told so");
}

absl::Status Wrong(const std::string& path, const absl::Status& why) {
  return absl::FailedPreconditionError(absl::StrFormat("%s: %s", path, why.message()));
}

// What gRPC would find out at the first handshake, or not at all.
absl::Status CheckFiles(const TransportOptions& options) {
  const absl::StatusOr<std::string> certificate =
      ReadTrustedFile(options.certificate_file, kMaxCertificateBytes, /*secret=*/false);
  const absl::StatusOr<std::string> key =
      ReadTrustedFile(options.key_file, kMaxCertificateBytes, /*secret=*/true);
  const absl::StatusOr<std::string> authorities =
      ReadTrustedFile(options.client_ca_file, kMaxAuthorityBytes, /*secret=*/false);
  for (const auto* text : {&certificate, &key, &authorities}) {
    if (!text->ok()) return absl::FailedPreconditionError(std::string(text->status().message()));
  }
  const absl::Status fits = CheckKeyPair(*certificate, *key);
  if (!fits.ok()) return Wrong(options.certificate_file + " and " + options.key_file, fits);
  const absl::Status readable = ReadCertificate(*authorities).status();
  if (!readable.ok()) return Wrong(options.client_ca_file, readable);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsOf(
    const TransportOptions& options) {
  if (!UsesTls(options)) {
    if (options.is_loopback || options.insecure_plaintext_off_loopback) {
      return grpc::InsecureServerCredentials();
    }
    return absl::FailedPreconditionError(absl::StrFormat(
        "rpc.listen is %s, which is not loopback: set rpc.tls_certificate_file, rpc.tls_key_file "
        "and rpc.tls_client_ca_file (`kvarve cert dev` makes some), or listen on 127.0.0.1 or "
        "[::1]",
        options.address));
  }
  if (options.certificate_file.empty() || options.key_file.empty() ||
      options.client_ca_file.empty()) {
    return absl::FailedPreconditionError(
        "TLS needs all of rpc.tls_certificate_file, rpc.tls_key_file and rpc.tls_client_ca_file");
  }
  KV_RETURN_IF_ERROR(CheckFiles(options));
  KV_RETURN_IF_ERROR(RefuseOldTls());
  namespace tls = grpc::experimental;
  tls::TlsServerCredentialsOptions with(std::make_shared<tls::FileWatcherCertificateProvider>(
      options.key_file, options.certificate_file, options.client_ca_file, options.reload_seconds));
  with.watch_identity_key_cert_pairs();
  with.watch_root_certs();
  with.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(with);
}

Presented PresentedBy(const grpc::ServerContextBase& context, std::string_view peer,
                      std::string* pem) {
  Presented presented;
  presented.peer = peer;
  const auto& metadata = context.client_metadata();
  const auto [first, last] = metadata.equal_range(kAuthorization);
  if (first != last) {
    presented.authorization = std::string_view(first->second.data(), first->second.size());
    presented.repeated = std::next(first) != last;
  }
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth != nullptr && auth->IsPeerAuthenticated()) {
    const std::vector<grpc::string_ref> certificates =
        auth->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
    if (certificates.size() == 1) {
      pem->assign(certificates.front().data(), certificates.front().size());
      presented.certificate_pem = *pem;
    }
  }
  return presented;
}

}  // namespace kvarve
