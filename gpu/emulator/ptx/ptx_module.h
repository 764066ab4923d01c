// PTX as nvcc wrote it, parsed once: entries, their instructions with handlers and operands
// resolved. An instruction that has no handler is an error here, never a surprise later.
//
// A value, read-only after parsing: THREADS: any.
#ifndef KVARVE_GPU_EMULATOR_PTX_PTX_MODULE_H_
#define KVARVE_GPU_EMULATOR_PTX_PTX_MODULE_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kvarve::ptx {

struct Type {
  char kind = 0;  // u, s, f, b, or p for a predicate; 0: none
  uint8_t bytes = 0;
  bool operator==(const Type&) const = default;
};

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kParam };

inline constexpr int kVectorOperand = -2;

struct Operand {
  int reg = -1;  // kVectorOperand: the instruction's elements; -1: an immediate, or the address of
                 // a symbol:
  uint64_t value = 0;  // also the offset of [register + offset]
};

// The registers that every thread starts with.
enum SpecialRegister { kTidX, kNtidX, kCtaidX, kNctaidX, kSpecialRegisters };

struct Thread;
struct Instruction;
class Runner;
// False: a fault, which the runner holds.
using Handler = bool (*)(Runner&, Thread&, const Instruction&);

enum class Flow : uint8_t { kNext, kBranch, kReturn, kBarrier, kShuffle, kWarpBarrier };

struct Instruction {
  Handler run = nullptr;
  Flow flow = Flow::kNext;
  int guard = -1;  // predicate register
  bool guard_negated = false;
  Type type, source_type;
  Space space = Space::kGeneric;
  uint8_t vector = 1;
  uint8_t variant = 0;  // comparison, atomic, rounding …: the handler's own
  int target = -1;
  int operand_count = 0;
  std::array<Operand, 5> operands;
  std::array<int, 4> elements{-1, -1, -1, -1};  // registers of a {…} operand
  int element_count = 0;
  int line = 0;
  std::string text;
};

struct Entry {
  std::string name;
  uint32_t param_bytes = 0;
  uint32_t shared_bytes = 0;
  int registers = kSpecialRegisters;
  std::vector<Instruction> code;
};

struct Module {
  std::string target;  // "sm_90"
  std::map<std::string, Entry> entries;
};

// InvalidArgument names the line and what is not understood.
absl::StatusOr<Module> ParseModule(const std::string& text);

// The handler of an opcode, split at its dots; fills what the opcode alone says (types, space,
// variant, flow). False: there is none.
bool FindHandler(const std::vector<std::string>& parts, Instruction* instruction);
// "global", "v2", …: what an access says besides its type. False: a word that is not known.
bool AccessWords(const std::vector<std::string>& parts, Instruction* instruction);

}  // namespace kvarve::ptx

#endif  // KVARVE_GPU_EMULATOR_PTX_PTX_MODULE_H_
