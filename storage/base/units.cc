#include "storage/base/units.h"

#include <cstdio>
#include <limits>

#include "absl/strings/str_format.h"

namespace kvarve {
namespace {

struct Unit {
  std::string_view name;
  uint64_t value;
};

constexpr Unit kByteUnits[] = {
    {"", 1},       {"B", 1},    {"K", kKiB},   {"KiB", kKiB},      {"M", kMiB},
    {"MiB", kMiB}, {"G", kGiB}, {"GiB", kGiB}, {"T", 1024 * kGiB}, {"TiB", 1024 * kGiB},
};
constexpr Unit kDurationUnits[] = {
    {"ns", 1},
    {"us", 1'000},
    {"ms", 1'000'000},
    {"s", 1'000'000'000},
    {"m", 60ull * 1'000'000'000},
    {"h", 3600ull * 1'000'000'000},
};
constexpr size_t kMaxDigits = 19;  // of the whole part: below 2^64
constexpr size_t kMaxFractionDigits = 9;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Splits off the leading digits.
std::string_view TakeDigits(std::string_view& text) {
  size_t n = 0;
  while (n < text.size() && IsDigit(text[n])) ++n;
  const std::string_view digits = text.substr(0, n);
  text.remove_prefix(n);
  return digits;
}

uint64_t ToInteger(std::string_view digits) {
  uint64_t value = 0;
  for (const char c : digits) value = value * 10 + static_cast<uint64_t>(c - '0');
  return value;
}

// "<digits>[.<digits>][ ]<unit>" in units of 1, rounded down; false when it is nothing of the kind
// or above `max`.
bool ParseQuantity(std::string_view text, std::span<const Unit> units, uint64_t max,
                   uint64_t* result) {
  const std::string_view whole = TakeDigits(text);
  if (whole.empty() || whole.size() > kMaxDigits) return false;
  std::string_view fraction;
  const bool point = !text.empty() && text[0] == '.';
  if (point) {
    text.remove_prefix(1);
    fraction = TakeDigits(text);
    if (fraction.empty() || fraction.size() > kMaxFractionDigits) return false;
  }
  if (text.size() > 1 && text[0] == ' ') text.remove_prefix(1);
  for (const Unit& unit : units) {
    if (unit.name != text) continue;
    if (point && unit.value == 1) return false;
    unsigned __int128 scaled = ToInteger(fraction);
    scaled *= unit.value;
    for (size_t i = 0; i < fraction.size(); ++i) scaled /= 10;
    const unsigned __int128 total =
        static_cast<unsigned __int128>(ToInteger(whole)) * unit.value + scaled;
    if (total > max) return false;
    *result = static_cast<uint64_t>(total);
    return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  uint64_t bytes = 0;
  if (!ParseQuantity(text, kByteUnits, std::numeric_limits<uint64_t>::max(), &bytes)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" is no size; write it like \"4096\", \"64KiB\", \"1.5GiB\" or \"8G\" (binary units)",
        text));
  }
  return bytes;
}

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return absl::StrFormat("%d B", bytes);
  int unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1023.5) {  // what would be printed as 1024 is one of the next unit
    value /= 1024;
    ++unit;
  }
  const char* name = kNames[unit];
  if (value < 9.995) return absl::StrFormat("%.2f %s", value, name);
  if (value < 99.95) return absl::StrFormat("%.1f %s", value, name);
  return absl::StrFormat("%.0f %s", value, name);
}

absl::StatusOr<int64_t> ParseDuration(std::string_view text) {
  if (text == "0") return 0;
  uint64_t nanos = 0;
  if (!ParseQuantity(text, kDurationUnits, std::numeric_limits<int64_t>::max(), &nanos)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" is no duration; write it like \"100us\", \"20ms\", \"1.5s\", \"1m\" or \"0\"",
        text));
  }
  return static_cast<int64_t>(nanos);
}

std::string FormatDuration(int64_t nanos) {
  if (nanos == 0) return "0";
  const std::string sign = nanos < 0 ? "-" : "";
  const uint64_t magnitude =
      nanos < 0 ? -static_cast<uint64_t>(nanos) : static_cast<uint64_t>(nanos);
  const Unit* unit = &kDurationUnits[0];
  for (const Unit& candidate : kDurationUnits) {
    if (magnitude >= candidate.value) unit = &candidate;
  }
  const double value = static_cast<double>(magnitude) / static_cast<double>(unit->value);
  if (value >= 1000) return sign + absl::StrFormat("%.0f%s", value, unit->name);
  return sign + absl::StrFormat("%.3g%s", value, unit->name);
}

std::string ToHex(std::span<const uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

absl::StatusOr<std::string> FromHex(std::string_view text) {
  auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  if (text.size() % 2 != 0) return absl::InvalidArgumentError("hexadecimal text of an odd length");
  std::string bytes;
  bytes.reserve(text.size() / 2);
  for (size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) {
      return absl::InvalidArgumentError(absl::StrFormat("\"%s\" is no hexadecimal text", text));
    }
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

}  // namespace kvarve
