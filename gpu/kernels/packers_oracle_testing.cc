#include "gpu/kernels/packers_oracle_testing.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace kvarve::testing {
namespace {

// A value of `fraction_bits` and `exponent_bits`, as the formats' definitions have it.
double Decode(uint32_t code, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t fraction = code & ((1u << fraction_bits) - 1);
  const uint32_t exponent = code >> fraction_bits & ((1u << exponent_bits) - 1);
  const double sign = code >> (exponent_bits + fraction_bits) & 1 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1u << fraction_bits) + fraction,
                           static_cast<int>(exponent) - bias - fraction_bits);
}

// Codes of one sign rise with their values: the nearest by bisection, ties to the even code.
uint32_t Nearest(double magnitude, int exponent_bits, int fraction_bits, uint32_t largest) {
  uint32_t low = 0, high = largest;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (Decode(middle, exponent_bits, fraction_bits) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - Decode(low, exponent_bits, fraction_bits);
  const double above = Decode(high, exponent_bits, fraction_bits) - magnitude;
  if (below == above) return low % 2 == 0 ? low : high;
  return below < above ? low : high;
}

// 16-bit formats whose largest exponent is infinity and NaN.
uint16_t Nearest16(float value, int exponent_bits, int fraction_bits, uint16_t nan) {
  if (std::isnan(value)) return nan;
  const uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;
  const uint32_t sign = std::signbit(value) ? 0x8000u : 0;
  // What rounds to the first value beyond the largest is infinite; its code is the next one.
  const uint32_t code =
      std::isinf(value) ? infinity
                        : Nearest(std::fabs(double{value}), exponent_bits, fraction_bits, infinity);
  return static_cast<uint16_t>(sign | code);
}

bool IsFinite(float value) { return std::isfinite(value); }

}  // namespace

float LoadNumber(const std::byte* at, NumberType type) {
  if (type == kF32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t code;
  std::memcpy(&code, at, sizeof code);
  const int exponent_bits = type == kBf16 ? 8 : 5, fraction_bits = 15 - exponent_bits;
  const uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;
  const float sign = code & 0x8000 ? -1.0f : 1.0f;
  if ((code & 0x7fffu) > infinity) return std::numeric_limits<float>::quiet_NaN();
  if ((code & 0x7fffu) == infinity) return sign * std::numeric_limits<float>::infinity();
  return static_cast<float>(Decode(code, exponent_bits, fraction_bits));
}

void StoreNumber(std::byte* at, NumberType type, float value) {
  if (type == kF32) {
    constexpr uint32_t kNan = 0x7fffffff;
    std::memcpy(at, std::isnan(value) ? static_cast<const void*>(&kNan) : &value, sizeof value);
    return;
  }
  const uint16_t code =
      type == kBf16 ? Nearest16(value, 8, 7, 0x7fff) : Nearest16(value, 5, 10, 0x7fff);
  std::memcpy(at, &code, sizeof code);
}

float Fp8Value(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(Decode(code, 4, 3));
}

uint8_t NearestFp8(float value) {
  if (std::isnan(value)) return 0x7f;
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::fabs(value) >= 448) return sign | 0x7e;
  return static_cast<uint8_t>(sign | Nearest(std::fabs(double{value}), 4, 3, 0x7e));
}

float PackOracle::GatherFp8(const std::vector<PackedRow>& rows) const {
  float most = 0;
  for (const PackedRow& row : rows) {
    for (uint32_t i = 0; i < Dim(row); ++i) {
      const float value = LoadNumber(row.page + i * view.element_bytes, type);
      if (IsFinite(value)) most = std::fmax(most, std::fabs(value));
    }
  }
  // The least power of two, of those whose inverse is one too.
  float scale = 1;
  if (most > 0) {
    scale = std::ldexp(1.0f, -126);
    while (std::ldexp(448.0, std::ilogb(scale)) < most) scale *= 2;
  }
  for (const PackedRow& row : rows) {
    for (uint32_t i = 0; i < Dim(row); ++i) {
      const float value = LoadNumber(row.page + i * view.element_bytes, type);
      row.packed[i] = static_cast<std::byte>(NearestFp8(value / scale));
    }
  }
  return scale;
}

void PackOracle::ScatterFp8(const std::vector<PackedRow>& rows, float scale) const {
  for (const PackedRow& row : rows) {
    for (uint32_t i = 0; i < Dim(row); ++i) {
      StoreNumber(row.page + i * view.element_bytes, type,
                  Fp8Value(static_cast<uint8_t>(row.packed[i])) * scale);
    }
  }
}

void PackOracle::GatherInt4(const std::vector<PackedRow>& rows) const {
  for (const PackedRow& row : rows) {
    const uint32_t dim = Dim(row);
    for (uint32_t g = 0; g < dim / group; ++g) {
      auto value = [&](uint32_t i) {
        return LoadNumber(row.page + (g * group + i) * view.element_bytes, type);
      };
      float low = std::numeric_limits<float>::infinity(), high = -low;
      for (uint32_t i = 0; i < group; ++i) {
        if (!IsFinite(value(i))) continue;
        low = std::fmin(low, value(i)), high = std::fmax(high, value(i));
      }
      if (low > high) low = high = 0;
      if (low == 0) low = 0;  // not -0
      if (high == 0) high = 0;
      std::byte meta[4];
      StoreNumber(meta + 2, kBf16, low);
      const float zero = LoadNumber(meta + 2, kBf16);
      StoreNumber(meta, kBf16, (high - zero) / 15);
      const float scale = LoadNumber(meta, kBf16);
      for (uint32_t i = 0; i < group; ++i) {
        float code = scale > 0 ? std::nearbyint((value(i) - zero) / scale) : 0;
        code = std::isnan(code) ? 0 : std::fmin(std::fmax(code, 0), 15);
        std::byte& byte = row.packed[(g * group + i) / 2];
        const auto nibble = static_cast<std::byte>(code);
        byte = i % 2 == 0 ? nibble : byte | nibble << 4;
      }
      std::memcpy(row.packed + dim / 2 + g * 4, meta, 4);
    }
  }
}

void PackOracle::ScatterInt4(const std::vector<PackedRow>& rows) const {
  for (const PackedRow& row : rows) {
    const uint32_t dim = Dim(row);
    for (uint32_t i = 0; i < dim; ++i) {
      const std::byte* const meta = row.packed + dim / 2 + i / group * 4;
      const auto code = static_cast<float>(
          std::to_integer<int>(row.packed[i / 2] >> (i % 2 * 4) & std::byte{15}));
      const float step = code * LoadNumber(meta, kBf16);
      StoreNumber(row.page + i * view.element_bytes, type, LoadNumber(meta + 2, kBf16) + step);
    }
  }
}

}  // namespace kvarve::testing
