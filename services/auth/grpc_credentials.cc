#include "services/auth/grpc_credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/conf.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <iterator>
#include <optional>
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

// Collects what is wrong with files.
class FileReader {
 public:
  explicit FileReader(std::vector<FileFault>* faults) : faults_(faults) {}

  // None: it is a fault.
  std::optional<std::string> Read(std::string_view setting, const std::string& path,
                                  size_t max_bytes, bool secret) {
    if (path.empty()) {
      Add(setting,
          "is not set; TLS needs all of rpc.tls_certificate_file, rpc.tls_key_file and "
          "rpc.tls_client_ca_file");
      return std::nullopt;
    }
    absl::StatusOr<std::string> text = ReadTrustedFile(path, max_bytes, secret);
    if (text.ok()) return *std::move(text);
    const bool is_missing = absl::IsNotFound(text.status());
    Add(setting, absl::StrFormat("%s%s", text.status().message(),
                                 is_missing ? "; `kvarve cert dev` makes some to try" : ""));
    return std::nullopt;
  }
  bool Check(std::string_view setting, const std::string& path, const absl::Status& status) {
    if (!status.ok()) Add(setting, absl::StrFormat("%s: %s", path, status.message()));
    return status.ok();
  }

 private:
  void Add(std::string_view setting, const std::string& why) {
    faults_->push_back({setting, absl::FailedPreconditionError(why)});
  }
  std::vector<FileFault>* const faults_;
};

}  // namespace

// What gRPC would find out at the first handshake, or not at all.
std::vector<FileFault> TlsFaults(const TransportOptions& options) {
  constexpr std::string_view kCertificate = "rpc.tls_certificate_file", kKey = "rpc.tls_key_file",
                             kAuthorities = "rpc.tls_client_ca_file";
  std::vector<FileFault> faults;
  if (!UsesTls(options)) return faults;
  FileReader reader(&faults);
  const auto certificate =
      reader.Read(kCertificate, options.certificate_file, kMaxCertificateBytes, /*secret=*/false);
  const bool is_certificate =
      certificate.has_value() &&
      reader.Check(kCertificate, options.certificate_file, ReadCertificate(*certificate).status());
  const auto key = reader.Read(kKey, options.key_file, kMaxCertificateBytes, /*secret=*/true);
  if (key.has_value() && is_certificate) {
    reader.Check(kKey, options.certificate_file + " and " + options.key_file,
                 CheckKeyPair(*certificate, *key));
  }
  const auto authorities =
      reader.Read(kAuthorities, options.client_ca_file, kMaxAuthorityBytes, /*secret=*/false);
  if (authorities.has_value()) {
    reader.Check(kAuthorities, options.client_ca_file, ReadCertificate(*authorities).status());
  }
  return faults;
}

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
  const std::vector<FileFault> faults = TlsFaults(options);
  if (!faults.empty()) return StatusOf(faults.front());
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
