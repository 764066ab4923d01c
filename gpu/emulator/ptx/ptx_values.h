// What handlers share: registers as values of a type, and which instantiation a type needs.
// THREADS: one.
#ifndef KVARVE_GPU_EMULATOR_PTX_PTX_VALUES_H_
#define KVARVE_GPU_EMULATOR_PTX_PTX_VALUES_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/emulator/ptx/ptx_module.h"
#include "gpu/emulator/ptx/ptx_run.h"

namespace kvarve::ptx {

template <typename T>
T Get(const Thread& t, const Operand& o) {
  const uint64_t bits = o.reg >= 0 ? t.registers[o.reg] : o.value;
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T>
void Put(Thread& t, const Operand& o, T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  t.registers[o.reg] = bits;
}

template <typename Operation>
Handler OfType(Type type) {
  if (type.kind == 'f') return type.bytes == 4 ? &Operation::template Run<float> : nullptr;
  const bool is_signed = type.kind == 's';
  switch (type.bytes) {
    case 1:
      return is_signed ? &Operation::template Run<int8_t> : &Operation::template Run<uint8_t>;
    case 2:
      return is_signed ? &Operation::template Run<int16_t> : &Operation::template Run<uint16_t>;
    case 4:
      return is_signed ? &Operation::template Run<int32_t> : &Operation::template Run<uint32_t>;
    case 8:
      return is_signed ? &Operation::template Run<int64_t> : &Operation::template Run<uint64_t>;
    default:
      return nullptr;
  }
}

// Of "u32", "b8", "pred" …; kind 0 for any other word.
Type TypeOf(const std::string& part);
// cvt's handler; null: none.
Handler FindConversion(const std::vector<std::string>& parts, const Instruction& instruction);
bool Permute(Runner& runner, Thread& t, const Instruction& i);
bool InsertBits(Runner& runner, Thread& t, const Instruction& i);

}  // namespace kvarve::ptx

#endif  // KVARVE_GPU_EMULATOR_PTX_PTX_VALUES_H_
