// Text for people: byte sizes ("64MiB", "1.5 GiB"), durations ("20ms"), hex.
// THREADS: any.
#ifndef KVARVE_STORAGE_BASE_UNITS_H_
#define KVARVE_STORAGE_BASE_UNITS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvarve {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

// "4096", "64KiB", "1.5GiB", "8G" (binary). InvalidArgument names the text and an example.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);
// "1.50 GiB", three significant digits.
std::string FormatBytes(uint64_t bytes);
// "20ms", "5s", "1m", "100us", "0"; to nanoseconds. InvalidArgument as above.
absl::StatusOr<int64_t> ParseDuration(std::string_view text);
std::string FormatDuration(int64_t nanos);

std::string ToHex(std::span<const uint8_t> bytes);
// InvalidArgument unless `text` is an even number of hexadecimal digits.
absl::StatusOr<std::string> FromHex(std::string_view text);

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BASE_UNITS_H_
