// What each PTX instruction does (PTX ISA, "Instruction Set"). Only those that nvcc emits for our
// kernels are here; the parser refuses all others.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "gpu/emulator/ptx/ptx_values.h"

namespace kvarve::ptx {
namespace {

uint32_t OriginIn(const Thread& t, const Operand& o) { return o.reg >= 0 ? t.origins[o.reg] : 0; }

// A sum points where its one pointer points; a sum of two pointers nowhere.
uint32_t OneOrigin(uint32_t a, uint32_t b) { return a == 0 ? b : b == 0 ? a : 0; }

template <typename T, typename Operation>
bool Binary(Thread& t, const Instruction& i, Operation operation) {
  Put<T>(t, i.operands[0],
         static_cast<T>(operation(Get<T>(t, i.operands[1]), Get<T>(t, i.operands[2]))));
  t.origins[i.operands[0].reg] = 0;
  return true;
}

// Integers wrap as unsigned ones do.
template <typename T>
using Wrapping =
    std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>;
template <typename T>
using WrappingT = typename Wrapping<T>::type;

struct Add {
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    const uint32_t origin = OneOrigin(OriginIn(t, i.operands[1]), OriginIn(t, i.operands[2]));
    Binary<WrappingT<T>>(t, i, [](auto a, auto b) { return a + b; });
    if constexpr (sizeof(T) == 8) t.origins[i.operands[0].reg] = origin;
    return true;
  }
};
struct Sub {
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    const uint32_t origin = OriginIn(t, i.operands[2]) == 0 ? OriginIn(t, i.operands[1]) : 0;
    Binary<WrappingT<T>>(t, i, [](auto a, auto b) { return a - b; });
    if constexpr (sizeof(T) == 8) t.origins[i.operands[0].reg] = origin;
    return true;
  }
};
struct Mul {  // .lo for integers
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    return Binary<WrappingT<T>>(t, i, [](auto a, auto b) { return a * b; });
  }
};
struct MulWide {
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    if constexpr (std::is_integral_v<T> && sizeof(T) == 4) {
      using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
      Put<Wide>(t, i.operands[0], Wide{Get<T>(t, i.operands[1])} * Wide{Get<T>(t, i.operands[2])});
      t.origins[i.operands[0].reg] = 0;
      return true;
    }
    return false;
  }
};
struct Mad {
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    using U = WrappingT<T>;
    const uint32_t origin = OriginIn(t, i.operands[3]);
    Put<U>(t, i.operands[0],
           static_cast<U>(Get<U>(t, i.operands[1]) * Get<U>(t, i.operands[2]) +
                          Get<U>(t, i.operands[3])));
    t.origins[i.operands[0].reg] = sizeof(T) == 8 ? origin : 0;
    return true;
  }
};
bool FusedMultiplyAdd(Runner&, Thread& t, const Instruction& i) {
  Put<float>(t, i.operands[0],
             std::fmaf(Get<float>(t, i.operands[1]), Get<float>(t, i.operands[2]),
                       Get<float>(t, i.operands[3])));
  t.origins[i.operands[0].reg] = 0;
  return true;
}
// The first one's sign, the second one's magnitude.
bool CopySign(Runner&, Thread& t, const Instruction& i) {
  Put<float>(t, i.operands[0],
             std::copysign(Get<float>(t, i.operands[2]), Get<float>(t, i.operands[1])));
  return true;
}
bool Reciprocal(Runner&, Thread& t, const Instruction& i) {
  return Put<float>(t, i.operands[0], 1.0f / Get<float>(t, i.operands[1])), true;
}
bool SquareRoot(Runner&, Thread& t, const Instruction& i) {
  return Put<float>(t, i.operands[0], std::sqrt(Get<float>(t, i.operands[1]))), true;
}
float WithoutSubnormal(float value) { return std::fabs(value) < 0x1p-126f ? 0.0f * value : value; }
template <float (*function)(float)>
bool Approximate(Runner&, Thread& t, const Instruction& i) {
  Put<float>(t, i.operands[0],
             WithoutSubnormal(function(WithoutSubnormal(Get<float>(t, i.operands[1])))));
  return true;
}
template <bool remainder>
struct Divide {
  template <typename T>
  static bool Run(Runner& r, Thread& t, const Instruction& i) {
    const T b = Get<T>(t, i.operands[2]);
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return r.Fault(t, i, "division by zero");
      return Binary<T>(t, i, [](T a, T c) { return remainder ? a % c : a / c; });
    } else {
      return Binary<T>(t, i, [](T a, T c) { return a / c; });
    }
  }
};
template <bool largest>
struct Extreme {
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    return Binary<T>(t, i, [](T a, T b) -> T {
      if constexpr (std::is_floating_point_v<T>)
        return largest ? std::fmax(a, b) : std::fmin(a, b);  // of a number and a NaN the number
      return largest ? std::max(a, b) : std::min(a, b);
    });
  }
};
template <char operation>
struct Bitwise {
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    if constexpr (std::is_integral_v<T>)
      return Binary<T>(t, i, [](T a, T b) {
        return operation == '&' ? a & b : operation == '|' ? a | b : a ^ b;
      });
    return false;
  }
};
struct Not {
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    if constexpr (std::is_integral_v<T>)
      Put<T>(t, i.operands[0],
             i.type.kind == 'p' ? !(Get<T>(t, i.operands[1]) & 1) : ~Get<T>(t, i.operands[1]));
    return true;
  }
};
// Shifts of the width or more give 0, or the sign.
struct ShiftLeft {
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    if constexpr (std::is_integral_v<T>) {
      const auto n = Get<uint32_t>(t, i.operands[2]);
      Put<T>(t, i.operands[0],
             n >= 8 * sizeof(T) ? T{0} : static_cast<T>(Get<WrappingT<T>>(t, i.operands[1]) << n));
      t.origins[i.operands[0].reg] = 0;
    }
    return true;
  }
};
struct ShiftRight {
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    if constexpr (std::is_integral_v<T>) {
      const auto n = std::min<uint32_t>(Get<uint32_t>(t, i.operands[2]), 8 * sizeof(T));
      const T a = Get<T>(t, i.operands[1]);
      const bool all = n == 8 * sizeof(T);
      Put<T>(t, i.operands[0],
             all ? static_cast<T>(std::is_signed_v<T> && a < 0 ? -1 : 0) : static_cast<T>(a >> n));
      t.origins[i.operands[0].reg] = 0;
    }
    return true;
  }
};
struct Negate {
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    using U = WrappingT<T>;
    if constexpr (std::is_integral_v<T>) {
      Put<U>(t, i.operands[0], static_cast<U>(U{0} - Get<U>(t, i.operands[1])));
    } else {
      Put<T>(t, i.operands[0], -Get<T>(t, i.operands[1]));
    }
    return true;
  }
};
struct Absolute {
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    if constexpr (std::is_floating_point_v<T>)
      Put<T>(t, i.operands[0], std::fabs(Get<T>(t, i.operands[1])));
    return true;
  }
};
struct Select {
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    const Operand& chosen = i.operands[Get<uint8_t>(t, i.operands[3]) & 1 ? 1 : 2];
    const uint32_t origin = OriginIn(t, chosen);
    Put<T>(t, i.operands[0], Get<T>(t, chosen));
    t.origins[i.operands[0].reg] = sizeof(T) == 8 ? origin : 0;
    return true;
  }
};
// One register from several smaller ones, or the other way round; the first is the lowest. A
// pointer that comes back together is one again.
template <int bytes>
bool Repack(Runner& r, Thread& t, const Instruction& i) {
  const int bits = 8 * bytes / i.element_count;
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  if (i.operands[0].reg == kVectorOperand) {
    const auto whole = Get<uint64_t>(t, i.operands[1]);
    for (int k = 0; k < i.element_count; ++k) {
      t.registers[i.elements[k]] = whole >> (bits * k) & mask;
      t.origins[i.elements[k]] = 0;
    }
    return true;
  }
  uint64_t whole = 0;
  for (int k = 0; k < i.element_count; ++k)
    whole |= (t.registers[i.elements[k]] & mask) << (bits * k);
  t.registers[i.operands[0].reg] = whole;
  t.origins[i.operands[0].reg] = bytes == 8 ? r.OriginOf(whole) : 0;
  return true;
}

// Also cvta: global addresses are generic ones here.
struct Move {
  template <typename T>
  static bool Run(Runner& r, Thread& t, const Instruction& i) {
    if (i.element_count > 0) return Repack<sizeof(T)>(r, t, i);
    const uint32_t origin = OriginIn(t, i.operands[1]);
    Put<T>(t, i.operands[0], Get<T>(t, i.operands[1]));
    t.origins[i.operands[0].reg] = sizeof(T) == 8 ? origin : 0;
    return true;
  }
};

constexpr const char* kComparisons[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                        "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
template <typename T>
bool Compare(uint8_t which, T a, T b) {
  bool unordered = false;
  if constexpr (std::is_floating_point_v<T>) unordered = std::isnan(a) || std::isnan(b);
  if (which == 12) return !unordered;
  if (which == 13) return unordered;
  if (unordered) return which >= 6;
  const bool answers[] = {a == b, a != b, a<b, a <= b, a> b, a >= b};
  return answers[which % 6];
}
struct SetPredicate {
  template <typename T>
  static bool Run(Runner&, Thread& t, const Instruction& i) {
    t.registers[i.operands[0].reg] =
        Compare<T>(i.variant, Get<T>(t, i.operands[1]), Get<T>(t, i.operands[2]));
    return true;
  }
};

struct Load {
  template <typename T>
  static bool Run(Runner& r, Thread& t, const Instruction& i) {
    const std::byte* const at = r.Access(t, i, i.operands[1], sizeof(T) * i.vector, false);
    if (at == nullptr) return false;
    for (int k = 0; k < i.vector; ++k) {
      T value;
      std::memcpy(&value, at + k * sizeof(T), sizeof value);
      const int reg = i.vector == 1 ? i.operands[0].reg : i.elements[k];
      if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
        t.registers[reg] = static_cast<uint64_t>(int64_t{value});
      } else {
        t.registers[reg] = 0;
        std::memcpy(&t.registers[reg], &value, sizeof value);
      }
      t.origins[reg] =
          sizeof(T) == 8 && i.space != Space::kShared ? r.OriginOf(t.registers[reg]) : 0;
    }
    return true;
  }
};
struct Store {
  template <typename T>
  static bool Run(Runner& r, Thread& t, const Instruction& i) {
    std::byte* const at = r.Access(t, i, i.operands[0], sizeof(T) * i.vector, true);
    if (at == nullptr) return false;
    for (int k = 0; k < i.vector; ++k) {
      const T value = i.vector == 1 ? Get<T>(t, i.operands[1]) : Get<T>(t, {i.elements[k], 0});
      std::memcpy(at + k * sizeof(T), &value, sizeof value);
    }
    return true;
  }
};
struct AtomicAdd {
  template <typename T>
  static bool Run(Runner& r, Thread& t, const Instruction& i) {
    std::byte* const at = r.Access(t, i, i.operands[1], sizeof(T), true);
    if (at == nullptr) return false;
    T old;
    std::memcpy(&old, at, sizeof old);
    const T sum = static_cast<T>(old + Get<T>(t, i.operands[2]));
    std::memcpy(at, &sum, sizeof sum);
    Put<T>(t, i.operands[0], old);
    return true;
  }
};

bool CopyAsync(Runner& r, Thread& t, const Instruction& i) {
  return r.CopyAsync(t, i, Get<uint64_t>(t, i.operands[2]));
}
bool CommitCopies(Runner& r, Thread& t, const Instruction&) { return r.CommitCopies(t), true; }
bool WaitForCopies(Runner& r, Thread& t, const Instruction& i) {
  return r.WaitForCopies(t, Get<uint64_t>(t, i.operands[0])), true;
}

// The words behind cp.async; `variant` a for .ca, g for .cg, which takes 16 bytes alone.
Handler FindCopy(const std::vector<std::string>& parts, Instruction* i) {
  if (parts.size() == 3 && parts[2] == "commit_group") return &CommitCopies;
  if (parts.size() == 3 && parts[2] == "wait_group") return &WaitForCopies;
  if (parts.size() != 5 || parts[3] != "shared" || parts[4] != "global") return nullptr;
  i->variant = static_cast<uint8_t>(parts[2] == "ca" ? 'a' : 'g');
  return parts[2] == "ca" || parts[2] == "cg" ? &CopyAsync : nullptr;
}

bool Nothing(Runner&, Thread&, const Instruction&) { return true; }

}  // namespace

bool FindHandler(const std::vector<std::string>& parts, Instruction* i) {
  const std::string& name = parts[0];
  for (size_t k = 1; k < parts.size(); ++k) {
    const Type type = TypeOf(parts[k]);
    if (type.kind == 0) continue;
    (i->type.kind == 0 ? i->type : i->source_type) = type;
  }
  auto has = [&](const char* word) { return std::count(parts.begin() + 1, parts.end(), word) > 0; };
  const size_t words = parts.size() - 1;
  // Where a word beside the type must be there, or may be.
  const bool typed = words == 1, rounded = words == 2 && has("rn");
  const bool arithmetic = typed || (rounded && i->type.kind == 'f');
  if (name == "bra") return i->flow = Flow::kBranch, typed ? has("uni") : words == 0;
  if (name == "ret") return i->flow = Flow::kReturn, words == 0;
  if (name == "bar" && has("warp")) return i->flow = Flow::kWarpBarrier, words == 2 && has("sync");
  if (name == "bar") return i->flow = Flow::kBarrier, typed && has("sync");
  if (name == "shfl") return i->flow = Flow::kShuffle, has("sync") && has("bfly") && has("b32");
  if (name == "membar") return i->run = &Nothing, typed;
  if (name == "ld" && AccessWords(parts, i)) i->run = OfType<Load>(i->type);
  if (name == "st" && AccessWords(parts, i)) i->run = OfType<Store>(i->type);
  if (name == "atom" && has("add") && i->type.kind != 'f' && AccessWords(parts, i))
    i->run = OfType<AtomicAdd>(i->type);
  if (name == "cp" && words >= 2 && parts[1] == "async") i->run = FindCopy(parts, i);
  if (name == "mov" && typed) i->run = OfType<Move>(i->type);
  if (name == "cvta" && has("to") && has("global")) i->run = OfType<Move>(i->type);
  if (name == "add" && arithmetic) i->run = OfType<Add>(i->type);
  if (name == "sub" && arithmetic) i->run = OfType<Sub>(i->type);
  if (name == "mul" && (has("lo") || i->type.kind == 'f') &&
      words == (has("lo") || has("rn") ? 2 : 1))
    i->run = OfType<Mul>(i->type);
  if (name == "mul" && has("wide") && i->type.bytes == 4) i->run = OfType<MulWide>(i->type);
  if (name == "fma" && rounded && i->type == Type{'f', 4}) i->run = &FusedMultiplyAdd;
  if (name == "mad" && has("lo") && words == 2) i->run = OfType<Mad>(i->type);
  if (name == "div" && (i->type.kind == 'f' ? rounded : typed))
    i->run = OfType<Divide<false>>(i->type);
  if (name == "rem" && typed) i->run = OfType<Divide<true>>(i->type);
  if (name == "min" && typed) i->run = OfType<Extreme<false>>(i->type);
  if (name == "max" && typed) i->run = OfType<Extreme<true>>(i->type);
  if (name == "and" && typed) i->run = OfType<Bitwise<'&'>>(i->type);
  if (name == "or" && typed) i->run = OfType<Bitwise<'|'>>(i->type);
  if (name == "xor" && typed) i->run = OfType<Bitwise<'^'>>(i->type);
  if (name == "not" && typed) i->run = OfType<Not>(i->type);
  if (name == "shl" && typed) i->run = OfType<ShiftLeft>(i->type);
  if (name == "shr" && typed) i->run = OfType<ShiftRight>(i->type);
  if (name == "neg" && typed) i->run = OfType<Negate>(i->type);
  if (name == "copysign" && typed && i->type == Type{'f', 4}) i->run = &CopySign;
  // To a few units in the last place; subnormal numbers are 0.
  const bool approximate = words == 3 && has("approx") && has("ftz") && i->type == Type{'f', 4};
  if (name == "rcp" && rounded && i->type == Type{'f', 4}) i->run = &Reciprocal;
  if (name == "sqrt" && rounded && i->type == Type{'f', 4}) i->run = &SquareRoot;
  if (name == "ex2" && approximate) i->run = &Approximate<std::exp2>;
  if (name == "lg2" && approximate) i->run = &Approximate<std::log2>;
  if (name == "abs" && typed && i->type.kind == 'f') i->run = OfType<Absolute>(i->type);
  if (name == "selp" && typed) i->run = OfType<Select>(i->type);
  if (name == "cvt") i->run = FindConversion(parts, *i);
  if (name == "prmt" && typed) i->run = &Permute;
  if (name == "bfi" && typed && i->type.bytes == 4) i->run = &InsertBits;
  if (name == "setp" && words == 2) {
    for (size_t k = 0; k < std::size(kComparisons); ++k) {
      if (parts[1] == kComparisons[k])
        i->variant = static_cast<uint8_t>(k), i->run = OfType<SetPredicate>(i->type);
    }
  }
  return i->run != nullptr;
}

}  // namespace kvarve::ptx
