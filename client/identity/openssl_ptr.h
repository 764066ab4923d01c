// Owners of OpenSSL's objects. THREADS: as OpenSSL says: one at a time.
#ifndef KVARVE_CLIENT_IDENTITY_OPENSSL_PTR_H_
#define KVARVE_CLIENT_IDENTITY_OPENSSL_PTR_H_

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <string_view>

namespace kvarve {

template <auto Free>
struct OpensslFree {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using BioPtr = std::unique_ptr<BIO, OpensslFree<BIO_free_all>>;
using BignumPtr = std::unique_ptr<BIGNUM, OpensslFree<BN_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpensslFree<EVP_PKEY_free>>;
using KeyContextPtr = std::unique_ptr<EVP_PKEY_CTX, OpensslFree<EVP_PKEY_CTX_free>>;
using CertificatePtr = std::unique_ptr<X509, OpensslFree<X509_free>>;

inline BioPtr ReadOnly(std::string_view text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

inline std::string Written(const BioPtr& bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return size > 0 ? std::string(data, static_cast<size_t>(size)) : std::string();
}

// No passphrase is ever asked for on a terminal.
inline int NoPassphrase(char*, int, int, void*) { return 0; }

inline KeyPtr ReadPrivateKey(std::string_view pem) {
  const BioPtr bio = ReadOnly(pem);
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  return key;
}

}  // namespace kvarve

#endif  // KVARVE_CLIENT_IDENTITY_OPENSSL_PTR_H_
