// Conversions between number formats, and the instructions that pick bits apart.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "gpu/emulator/ptx/ptx_values.h"
#include "gpu/kernels/packers_oracle_testing.h"

namespace kvarve::ptx {
namespace {

double ReadNumber(const Thread& t, const Operand& o, Type type) {
  if (type.kind == 'f' && type.bytes == 4) return Get<float>(t, o);
  const auto half = Get<uint16_t>(t, o);
  if (type.kind == 'f') return testing::LoadNumber(reinterpret_cast<const std::byte*>(&half), kF16);
  return 0;
}

uint64_t ReadInteger(const Thread& t, const Operand& o, Type type) {
  const auto bits = Get<uint64_t>(t, o);
  const int unused = 64 - 8 * type.bytes;
  if (type.kind == 's')
    return static_cast<uint64_t>(static_cast<int64_t>(bits << unused) >> unused);
  return bits << unused >> unused;
}

bool ConvertInteger(Runner&, Thread& t, const Instruction& i) {
  const uint64_t value = ReadInteger(t, i.operands[1], i.source_type);
  const int unused = 64 - 8 * i.type.bytes;
  t.registers[i.operands[0].reg] = value << unused >> unused;
  t.origins[i.operands[0].reg] = 0;
  return true;
}
bool IntegerToFloat(Runner&, Thread& t, const Instruction& i) {
  const uint64_t value = ReadInteger(t, i.operands[1], i.source_type);
  Put<float>(t, i.operands[0],
             i.source_type.kind == 's' ? static_cast<float>(static_cast<int64_t>(value))
                                       : static_cast<float>(value));
  return true;
}
bool HalfToFloat(Runner&, Thread& t, const Instruction& i) {
  Put<float>(t, i.operands[0], static_cast<float>(ReadNumber(t, i.operands[1], i.source_type)));
  return true;
}
bool FloatToHalf(Runner&, Thread& t, const Instruction& i) {
  std::byte half[2];
  testing::StoreNumber(half, kF16, Get<float>(t, i.operands[1]));
  uint16_t bits;
  std::memcpy(&bits, half, sizeof bits);
  Put<uint16_t>(t, i.operands[0], bits);
  return true;
}
// The first operand in the upper byte.
bool FloatsToFp8(Runner&, Thread& t, const Instruction& i) {
  const uint16_t high = testing::NearestFp8(Get<float>(t, i.operands[1]));
  const uint16_t low = testing::NearestFp8(Get<float>(t, i.operands[2]));
  Put<uint16_t>(t, i.operands[0], static_cast<uint16_t>(high << 8 | low));
  return true;
}

}  // namespace

// {p, …}: one of the bytes of a and b for each nibble of the third, as it is.
bool Permute(Runner&, Thread& t, const Instruction& i) {
  const uint64_t bytes =
      uint64_t{Get<uint32_t>(t, i.operands[2])} << 32 | Get<uint32_t>(t, i.operands[1]);
  const auto selector = Get<uint32_t>(t, i.operands[3]);
  uint32_t result = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t nibble = selector >> (4 * k) & 15;
    uint32_t byte = bytes >> (8 * (nibble & 7)) & 0xff;
    if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * k);
  }
  Put<uint32_t>(t, i.operands[0], result);
  return true;
}

bool InsertBits(Runner&, Thread& t, const Instruction& i) {
  const auto a = Get<uint32_t>(t, i.operands[1]), b = Get<uint32_t>(t, i.operands[2]);
  const uint32_t at = Get<uint32_t>(t, i.operands[3]) & 0xff,
                 n = Get<uint32_t>(t, i.operands[4]) & 0xff;
  const uint64_t field =
      (n >= 32 ? 0xffffffff : (uint64_t{1} << n) - 1) << std::min(at, 32u) & 0xffffffff;
  Put<uint32_t>(t, i.operands[0],
                static_cast<uint32_t>((b & ~field) | (uint64_t{a} << std::min(at, 32u) & field)));
  return true;
}

Type TypeOf(const std::string& part) {
  if (part == "pred") return {'p', 1};
  if (part == "e4m3x2") return {'8', 2};
  for (const char kind : {'u', 's', 'b', 'f'}) {
    for (const int bits : {8, 16, 32, 64}) {
      if (part == absl::StrFormat("%c%d", kind, bits))
        return {kind, static_cast<uint8_t>(bits / 8)};
    }
  }
  return {};
}

Handler FindConversion(const std::vector<std::string>& parts, const Instruction& i) {
  const bool nearest = std::count(parts.begin(), parts.end(), "rn") > 0;
  const Type to = i.type, from = i.source_type;
  if (to.kind == '8' && from == Type{'f', 4} && nearest && parts.size() == 5 &&
      parts[2] == "satfinite")
    return &FloatsToFp8;
  const bool plain = parts.size() == (nearest ? 4u : 3u);
  if (!plain || to.kind == 0 || from.kind == 0) return nullptr;
  if (to == Type{'f', 4} && from == Type{'f', 2}) return &HalfToFloat;
  if (to == Type{'f', 2} && from == Type{'f', 4} && nearest) return &FloatToHalf;
  if (to == Type{'f', 4} && (from.kind == 'u' || from.kind == 's') && nearest)
    return &IntegerToFloat;
  if ((to.kind == 'u' || to.kind == 's') && (from.kind == 'u' || from.kind == 's'))
    return &ConvertInteger;
  return nullptr;
}

}  // namespace kvarve::ptx
