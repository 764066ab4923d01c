#include "client/identity/certificate.h"

#include <arpa/inet.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_format.h"
#include "client/identity/key_set.h"
#include "client/identity/openssl_ptr.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

using NamesPtr = std::unique_ptr<GENERAL_NAMES, OpensslFree<GENERAL_NAMES_free>>;
using ExtensionPtr = std::unique_ptr<X509_EXTENSION, OpensslFree<X509_EXTENSION_free>>;

constexpr int kSerialBytes = 16;

CertificatePtr ReadFirst(std::string_view pem) {
  if (pem.empty() || pem.size() > kMaxCertificateBytes) return nullptr;
  const BioPtr bio = ReadOnly(pem);
  CertificatePtr certificate(PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  return certificate;
}

int64_t SecondsOf(const ASN1_TIME* time) {
  std::tm parts = {};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? static_cast<int64_t>(::timegm(&parts)) : 0;
}

absl::Status Failed(const char* what) {
  ERR_clear_error();
  return absl::InternalError(absl::StrFormat("OpenSSL cannot %s", what));
}

bool AddExtension(X509* certificate, const X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, const_cast<X509*>(issuer), certificate, nullptr, nullptr, 0);
  const ExtensionPtr extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool IsAddress(const std::string& host) {
  std::array<unsigned char, 16> bytes;
  return ::inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

// Serial number, times, name and key: what every certificate has.
bool Fill(X509* certificate, EVP_PKEY* key, const std::string& name, int64_t not_before,
          int64_t not_after) {
  std::array<unsigned char, kSerialBytes> serial;
  if (RAND_bytes(serial.data(), serial.size()) != 1) return false;
  serial[0] = (serial[0] & 0x7f) | 0x40;  // positive, and of full length
  const BignumPtr number(BN_bin2bn(serial.data(), serial.size(), nullptr));
  X509_NAME* const subject = X509_get_subject_name(certificate);
  return X509_set_version(certificate, X509_VERSION_3) == 1 && number != nullptr &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr &&
         ASN1_TIME_set(X509_getm_notBefore(certificate), not_before) != nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), not_after) != nullptr &&
         X509_set_pubkey(certificate, key) == 1 &&
         X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(name.data()),
                                    static_cast<int>(name.size()), -1, 0) == 1;
}

absl::StatusOr<std::string> Written(X509* certificate) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), certificate) != 1) {
    return Failed("write a certificate");
  }
  return kvarve::Written(bio);
}

// A value of OpenSSL's little language must not end where the caller did not mean it to.
absl::StatusOr<std::string> AlternativeNames(const CertificateRequest& request) {
  std::string names;
  const auto add = [&names](const char* kind, const std::string& value) {
    const bool plain = std::all_of(value.begin(), value.end(), [](char c) {
      return c > ' ' && c < 0x7f && c != ',' && c != ';' && c != '"' && c != '\\' && c != '@';
    });
    if (value.empty() || !plain) {
      return absl::InvalidArgumentError("a host or URI of other than plain characters");
    }
    names += (names.empty() ? "" : ",") + std::string(kind) + ":" + value;
    return absl::OkStatus();
  };
  for (const std::string& uri : request.uris) KV_RETURN_IF_ERROR(add("URI", uri));
  for (const std::string& host : request.hosts) {
    KV_RETURN_IF_ERROR(add(IsAddress(host) ? "IP" : "DNS", host));
  }
  return names;
}

}  // namespace

absl::StatusOr<CertificateFacts> ReadCertificate(std::string_view pem) {
  const CertificatePtr certificate = ReadFirst(pem);
  if (certificate == nullptr) return absl::InvalidArgumentError("holds no certificate in PEM");
  CertificateFacts facts;
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  if (X509_digest(certificate.get(), EVP_sha256(), digest.data(), nullptr) != 1) {
    return Failed("hash a certificate");
  }
  facts.fingerprint = ToHex(digest);
  facts.not_before = SecondsOf(X509_get0_notBefore(certificate.get()));
  facts.not_after = SecondsOf(X509_get0_notAfter(certificate.get()));
  const NamesPtr names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  ERR_clear_error();
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    facts.uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                            static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return facts;
}

absl::Status CheckKeyPair(std::string_view certificate_pem, std::string_view private_pem) {
  const CertificatePtr certificate = ReadFirst(certificate_pem);
  if (certificate == nullptr) return absl::InvalidArgumentError("holds no certificate in PEM");
  const KeyPtr key = ReadPrivateKey(private_pem);
  if (key == nullptr) {
    return absl::InvalidArgumentError("the key is no private key in PEM without a passphrase");
  }
  const bool fits = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError("the key is another certificate's");
}

absl::StatusOr<Issued> NewAuthority(const std::string& name, int64_t not_before,
                                    int64_t not_after) {
  Issued issued;
  KV_ASSIGN_OR_RETURN(issued.key, NewPrivateKey());
  const KeyPtr key = ReadPrivateKey(issued.key);
  const CertificatePtr certificate(X509_new());
  X509* const x509 = certificate.get();
  if (key == nullptr || x509 == nullptr || !Fill(x509, key.get(), name, not_before, not_after) ||
      X509_set_issuer_name(x509, X509_get_subject_name(x509)) != 1 ||
      !AddExtension(x509, x509, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(x509, x509, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !AddExtension(x509, x509, NID_subject_key_identifier, "hash") ||
      X509_sign(x509, key.get(), EVP_sha256()) == 0) {
    return Failed("make an authority");
  }
  KV_ASSIGN_OR_RETURN(issued.certificate, Written(x509));
  return issued;
}

absl::StatusOr<Issued> IssueCertificate(const Issued& authority,
                                        const CertificateRequest& request) {
  const CertificatePtr issuer = ReadFirst(authority.certificate);
  const KeyPtr issuer_key = ReadPrivateKey(authority.key);
  if (issuer == nullptr || issuer_key == nullptr ||
      !CheckKeyPair(authority.certificate, authority.key).ok()) {
    return absl::InvalidArgumentError("the authority's certificate and key do not fit");
  }
  KV_ASSIGN_OR_RETURN(const std::string names, AlternativeNames(request));
  Issued issued;
  KV_ASSIGN_OR_RETURN(issued.key, NewPrivateKey());
  const KeyPtr key = ReadPrivateKey(issued.key);
  const CertificatePtr certificate(X509_new());
  X509* const x509 = certificate.get();
  if (key == nullptr || x509 == nullptr ||
      !Fill(x509, key.get(), request.name, request.not_before, request.not_after) ||
      X509_set_issuer_name(x509, X509_get_subject_name(issuer.get())) != 1 ||
      !AddExtension(x509, issuer.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(x509, issuer.get(), NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(x509, issuer.get(), NID_ext_key_usage,
                    request.server ? "serverAuth,clientAuth" : "clientAuth") ||
      !AddExtension(x509, issuer.get(), NID_subject_key_identifier, "hash") ||
      !AddExtension(x509, issuer.get(), NID_authority_key_identifier, "keyid") ||
      (!names.empty() && !AddExtension(x509, issuer.get(), NID_subject_alt_name, names)) ||
      X509_sign(x509, issuer_key.get(), EVP_sha256()) == 0) {
    return Failed("make a certificate");
  }
  KV_ASSIGN_OR_RETURN(issued.certificate, Written(x509));
  return issued;
}

}  // namespace kvarve
