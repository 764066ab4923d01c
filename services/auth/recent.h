// What was found out lately about something, by its SHA-256: at most so many, the longest unused is
// forgotten first. THREADS: externally synchronised.
#ifndef KVARVE_SERVICES_AUTH_RECENT_H_
#define KVARVE_SERVICES_AUTH_RECENT_H_

#include <openssl/sha.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace kvarve {

using Digest = std::array<uint8_t, SHA256_DIGEST_LENGTH>;

inline Digest DigestOfText(std::string_view text) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

template <typename Value>
class Recent {
 public:
  explicit Recent(size_t max) : max_(max) {}

  // Null: unknown. The pointer is good until the next change.
  Value* Find(const Digest& digest) {
    const auto found = of_.find(digest);
    if (found == of_.end()) return nullptr;
    list_.splice(list_.begin(), list_, found->second);
    return &found->second->second;
  }
  void Put(const Digest& digest, Value value) {
    if (Value* const known = Find(digest); known != nullptr) {
      *known = std::move(value);
      return;
    }
    if (list_.size() >= max_) {
      of_.erase(list_.back().first);
      list_.pop_back();
    }
    list_.emplace_front(digest, std::move(value));
    of_.emplace(digest, list_.begin());
  }
  void Clear() {
    of_.clear();
    list_.clear();
  }
  size_t size() const { return list_.size(); }

 private:
  struct Hash {
    size_t operator()(const Digest& digest) const {
      size_t hash;
      std::memcpy(&hash, digest.data(), sizeof(hash));
      return hash;
    }
  };
  using Item = std::pair<Digest, Value>;
  const size_t max_;
  std::list<Item> list_;
  std::unordered_map<Digest, typename std::list<Item>::iterator, Hash> of_;
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_AUTH_RECENT_H_
