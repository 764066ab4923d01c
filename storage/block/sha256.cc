#include "storage/block/sha256.h"

#include <openssl/evp.h>

#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

EVP_MD_CTX* Context(void* context) { return static_cast<EVP_MD_CTX*>(context); }

// Fetched once: an implicit fetch at every digest costs more than the digest of a block's tokens.
const EVP_MD* Algorithm() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  KV_CHECK(algorithm != nullptr);
  return algorithm;
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  KV_CHECK(context_ != nullptr);
  KV_CHECK(EVP_DigestInit_ex2(Context(context_), Algorithm(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(Context(context_)); }

void Sha256::Update(const void* data, size_t size) {
  KV_CHECK(EVP_DigestUpdate(Context(context_), data, size) == 1);
}

std::array<uint8_t, 32> Sha256::Finish() {
  std::array<uint8_t, 32> digest;
  unsigned size = 0;
  KV_CHECK(EVP_DigestFinal_ex(Context(context_), digest.data(), &size) == 1 &&
           size == digest.size());
  KV_CHECK(EVP_DigestInit_ex2(Context(context_), nullptr, nullptr) == 1);
  return digest;
}

}  // namespace kvarve
