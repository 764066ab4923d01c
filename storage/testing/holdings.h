// THREADS: any.
#ifndef KVARVE_STORAGE_TESTING_HOLDINGS_H_
#define KVARVE_STORAGE_TESTING_HOLDINGS_H_

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>

namespace kvarve::testing {

// What a process has open and mapped of memory that it shares.
struct Holdings {
  size_t descriptors = 0, mappings = 0;
  static Holdings Now() {
    Holdings holdings;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      ++holdings.descriptors;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
      holdings.mappings += line.find("memfd:") != std::string::npos ? 1 : 0;
    return holdings;
  }
  bool operator==(const Holdings&) const = default;
  std::string Text() const {
    return std::to_string(descriptors) + " descriptors, " + std::to_string(mappings) + " mappings";
  }
};

}  // namespace kvarve::testing

#endif  // KVARVE_STORAGE_TESTING_HOLDINGS_H_
