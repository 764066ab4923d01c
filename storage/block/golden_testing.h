// Reads the golden vectors of storage/block/testdata (made by make_golden.py). Tests only; they run
// at the root.
#ifndef KVARVE_STORAGE_BLOCK_GOLDEN_TESTING_H_
#define KVARVE_STORAGE_BLOCK_GOLDEN_TESTING_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <string>

#include "nlohmann/json.hpp"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve {

inline nlohmann::json ReadGolden(const std::string& name) {
  std::ifstream file("storage/block/testdata/" + name);
  KV_CHECK(file.is_open());
  return nlohmann::json::parse(file);
}

inline std::string Unhex(const nlohmann::json& hex) {
  return FromHex(hex.get<std::string>()).value();
}

template <size_t n>
std::array<uint8_t, n> UnhexArray(const nlohmann::json& hex) {
  const std::string bytes = Unhex(hex);
  KV_CHECK(bytes.size() <= n);
  std::array<uint8_t, n> array{};
  std::copy(bytes.begin(), bytes.end(), array.begin());
  return array;
}

inline uint64_t UnhexWord(const nlohmann::json& hex) {
  return std::stoull(hex.get<std::string>(), nullptr, 16);
}

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BLOCK_GOLDEN_TESTING_H_
