// SHA-256 of a few pieces. The one place that includes OpenSSL's digests.
// THREADS: one at a time for each object.
#ifndef KVARVE_STORAGE_BLOCK_SHA256_H_
#define KVARVE_STORAGE_BLOCK_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvarve {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(const void* data, size_t size);
  void Update(std::string_view data) { Update(data.data(), data.size()); }
  // The digest of all since construction or the last Finish; begins anew.
  std::array<uint8_t, 32> Finish();

 private:
  void* const context_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BLOCK_SHA256_H_
