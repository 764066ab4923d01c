#include "gpu/bench/device_cases_testing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "absl/strings/str_format.h"
#include "gpu/attention/attention_kernels_testing.h"
#include "gpu/attention/key_diff_testing.h"
#include "gpu/emulator/shim_launch.h"
#include "gpu/kernels/kernels_testing.h"

namespace kvarve::gpu_bench {
namespace {

using testing::Memory;
using testing::RunLaunch;

// Takes what RunLaunch is given into a case.
class Recorder {
 public:
  explicit Recorder(std::string name) { case_.name = std::move(name); }

  // With `run` the launch is run, too, and what it changed is what it must change.
  std::string Record(const Launch& launch, const Memory& memory, bool run) {
    if (case_.launches.empty()) TakeImage(memory);
    const KernelInfo& info = kKernels[launch.kernel];
    CaseLaunch taken{info.name, launch.grid, {}, {}};
    const auto* const params = reinterpret_cast<const uint8_t*>(launch.params.data());
    taken.params.assign(params, params + info.params_bytes);
    taken.addresses = Relocate(taken.params);
    case_.launches.push_back(std::move(taken));
    if (!run) return "";
    const std::string fault = shim::RunOnShim(launch, shim::Order::kForward, 1);
    if (fault.empty()) TakeChanges();
    return fault;
  }
  RunLaunch Running() {
    return [this](const Launch& l, const Memory& m) { return Record(l, m, true); };
  }
  RunLaunch NotRunning() {
    return [this](const Launch& l, const Memory& m) { return Record(l, m, false); };
  }

  // An offset that was an address when it was recorded, from the last launch's parameters.
  template <typename Params>
  Params Last(size_t from_end = 0) const {
    Params params{};
    const auto& launch = case_.launches[case_.launches.size() - 1 - from_end];
    std::memcpy(&params, launch.params.data(), sizeof params);
    return params;
  }
  const std::string& kernel(size_t from_end) const {
    return case_.launches[case_.launches.size() - 1 - from_end].kernel;
  }
  size_t launches() const { return case_.launches.size(); }
  DeviceCase& taken() { return case_; }

 private:
  struct Part {
    uint64_t address, bytes, offset;
  };

  void TakeImage(const Memory& memory) {
    uint64_t end = 0;
    for (const std::span<const std::byte> bytes : memory) {
      const auto address = reinterpret_cast<uint64_t>(bytes.data());
      // The widths of accesses follow from addresses: these stay what they are, modulo a lot.
      uint64_t offset = (end + kImageAlignment - 1) / kImageAlignment * kImageAlignment;
      offset += address % kImageAlignment;
      parts_.push_back({address, bytes.size(), offset});
      end = offset + bytes.size();
    }
    case_.image.assign(end, 0xA5);
    for (const Part& part : parts_) CopyAll(AtHost(part), part.bytes, &case_.image[part.offset]);
    for (const Part& part : parts_) {
      for (uint64_t at = (8 - part.address % 8) % 8; at + 8 <= part.bytes; at += 8) {
        if (RelocateWord(case_.image.data() + part.offset + at))
          case_.addresses.push_back(static_cast<uint32_t>(part.offset + at));
      }
    }
  }

  // Pages that a kernel must not touch are poisoned (kernels_testing.cc), and recorded all the
  // same.
  __attribute__((no_sanitize("address"))) static void CopyAll(const void* from, size_t bytes,
                                                              uint8_t* to) {
    const auto* at = static_cast<const volatile uint8_t*>(from);
    for (size_t i = 0; i < bytes; ++i) to[i] = at[i];
  }

  static const void* AtHost(const Part& part) {
    return reinterpret_cast<const void*>(part.address);
  }

  // An address of recorded memory becomes an offset. Random bytes are none: 2^-40 or so.
  bool RelocateWord(uint8_t* at) const {
    uint64_t word = 0;
    std::memcpy(&word, at, sizeof word);
    for (const Part& part : parts_) {
      if (word < part.address || word - part.address >= part.bytes) continue;
      word = part.offset + (word - part.address);
      std::memcpy(at, &word, sizeof word);
      return true;
    }
    return false;
  }
  std::vector<uint32_t> Relocate(std::vector<uint8_t>& bytes) const {
    std::vector<uint32_t> addresses;
    for (uint32_t at = 0; at + 8 <= bytes.size(); at += 8) {
      if (RelocateWord(bytes.data() + at)) addresses.push_back(at);
    }
    return addresses;
  }

  void TakeChanges() {
    case_.changed.clear();
    std::vector<bool> is_address(case_.image.size());
    for (const uint32_t at : case_.addresses)
      std::fill_n(is_address.begin() + at, sizeof(uint64_t), true);
    for (const Part& part : parts_) {
      std::vector<uint8_t> now(part.bytes);
      CopyAll(AtHost(part), part.bytes, now.data());
      bool open = false;
      for (uint64_t i = 0; i < part.bytes; ++i) {
        const uint64_t at = part.offset + i;
        const bool differs = !is_address[at] && now[i] != case_.image[at];
        if (differs && !open) case_.changed.push_back({at, {}});
        if (differs) case_.changed.back().bytes.push_back(now[i]);
        open = differs;
      }
    }
  }

  DeviceCase case_;
  std::vector<Part> parts_;
};

std::vector<float> Floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

void RecordAttention(const testing::AttentionCase& which, std::vector<DeviceCase>* cases) {
  const testing::AttentionSetup setup(which);
  Recorder recorder(absl::StrFormat(
      "attention: dim %d, element type %d, layout %d, pages of %d, "
      "group %d, %s",
      which.dim, static_cast<int>(which.type), static_cast<int>(which.layout), which.page_tokens,
      which.group, setup.options.split_tokens > 0 ? "splits" : "one split"));
  setup.OnDevice(recorder.NotRunning());
  const testing::AttentionAnswer want = setup.Expected();
  const bool merged = recorder.launches() > 1 || recorder.kernel(0) == "kv_merge_states";
  uint64_t out = 0, lse = 0;
  if (merged) {
    const auto m = recorder.Last<MergeParams>();
    out = m.out, lse = m.lse;
    const auto p = recorder.Last<AttentionParams>(1);  // [outputs][log-sum-exps] of the workspace
    uint64_t states = 0;
    states = (p.lse - p.out) / (sizeof(float) * p.v_dim);
    recorder.taken().ignored.push_back({p.out, p.lse + states * sizeof(float)});
  } else {
    const auto p = recorder.Last<AttentionParams>();
    out = p.out, lse = p.lse;
  }
  const NumberType type = setup.numbers.out;
  const double unit = type == kF32 ? 0 : type == kF16 ? 0x1p-11 : 0x1p-8;
  recorder.taken().numbers = {{out, type, Floats(want.out), 1e-5 * want.largest_v, unit, false},
                              {lse, kF32, Floats(want.lse), 1e-5, 1e-5, true}};
  cases->push_back(std::move(recorder.taken()));
}

void RecordKeyDiff(ElementType type, uint32_t dim, uint64_t seed, std::vector<DeviceCase>* cases) {
  constexpr int64_t kTokens = 61;
  const testing::TestPages memory({.type = type,
                                   .layout = testing::kAttentionLayouts[seed % 4],
                                   .pages = 4,
                                   .page_tokens = 16,
                                   .kv_heads = dim == kMlaDim ? 1u : 2u,
                                   .k_dim = dim},
                                  seed);
  const auto table = testing::ShuffledTable(4, seed);
  const std::vector<KeyDiffSequence> sequences = {{.table = table, .tokens = kTokens}};
  Recorder recorder(
      absl::StrFormat("KeyDiff: dim %d, element type %d", dim, static_cast<int>(type)));
  testing::KeyDiffOnDevice(memory, sequences, 16, recorder.NotRunning());
  const testing::KeyDiffAnswer want = testing::KeyDiffByDefinition(memory, sequences[0], 16);
  const auto keys = recorder.Last<KeyDiffParams>(1);
  const auto blocks = recorder.Last<KeyDiffBlockParams>();
  uint64_t chunks = 0;  // one a head, of so few tokens
  chunks = memory.pages().kv_heads;
  recorder.taken().ignored.push_back({keys.sums, keys.sums + chunks * dim * sizeof(float)});
  recorder.taken().numbers = {{keys.scores, kF32, want.scores, 1e-5, 0, false},
                              {blocks.out, kF32, want.of_blocks, 1e-5, 0, false}};
  cases->push_back(std::move(recorder.taken()));
}

void RecordMovers(bool few, std::vector<DeviceCase>* cases) {
  constexpr uint32_t kPageTokens[] = {8, 16, 24};
  const uint32_t end = *FindKernelRow(KernelFamily::kAttentionFp32, 16);
  uint64_t seed = 1;
  for (uint32_t kernel = 0; kernel < end; ++kernel) {
    for (const testing::PageLayout layout : testing::kPageLayouts) {
      ++seed;
      if (few && layout != testing::kPageLayouts[kernel % std::size(testing::kPageLayouts)])
        continue;
      const bool any_layout = kKernels[kernel].family == KernelFamily::kBatchCopy;
      if (any_layout && layout != testing::PageLayout::kNhd && !few) continue;
      Recorder recorder(absl::StrFormat("%s: %s", kKernels[kernel].name, testing::NameOf(layout)));
      testing::CheckKernel({kernel, layout, kPageTokens[seed % 3], seed}, recorder.Running());
      cases->push_back(std::move(recorder.taken()));
    }
  }
}

}  // namespace

std::vector<DeviceCase> RecordCases(bool few) {
  constexpr ElementType kTypes[] = {ElementType::kFp32, ElementType::kFp16, ElementType::kBf16,
                                    ElementType::kFp8E4m3};
  constexpr uint32_t kPageTokens[] = {1, 8, 16, 32}, kGroups[] = {1, 4, 8};
  std::vector<DeviceCase> cases;
  RecordMovers(few, &cases);
  uint64_t seed = 0, turn = 0;
  for (const uint32_t dim : kAttentionDims) {
    for (const ElementType type : kTypes) {
      if (!testing::HasAttentionKernel(type, dim)) continue;
      ++turn;
      for (const testing::AttentionLayout layout : testing::kAttentionLayouts) {
        ++seed;
        const bool one_of_a_kernel = (dim == 64 || dim == 128 || dim == 256 || dim == kMlaDim) &&
                                     layout == testing::kAttentionLayouts[turn % 4];
        if (few && !one_of_a_kernel) continue;
        RecordAttention({type, dim, layout, kPageTokens[seed % 4], kGroups[seed % 3], seed},
                        &cases);
      }
      if (!few || dim == 64) RecordKeyDiff(type, dim, seed, &cases);
    }
  }
  return cases;
}

}  // namespace kvarve::gpu_bench
