#include "gpu/emulator/ptx/ptx_run.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"

namespace kvarve::ptx {
namespace {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kSector = 32;

}  // namespace

Runner::Runner(const Module& module, std::span<const Allocation> allocations)
    : module_(module), allocations_(allocations.begin(), allocations.end()) {
  std::sort(allocations_.begin(), allocations_.end(),
            [](const Allocation& a, const Allocation& b) { return a.begin < b.begin; });
}

std::string Runner::Run(const std::string& name, std::span<const std::byte> params,
                        const Grid& grid) {
  const auto found = module_.entries.find(name);
  if (found == module_.entries.end()) return "no entry " + name;
  const Entry& entry = found->second;
  if (params.size() != entry.param_bytes)
    return absl::StrFormat("%d bytes of parameters; %s has %d", params.size(), name,
                           entry.param_bytes);
  params_ = params;
  fault_.clear();
  steps_left_ = grid.step_limit;
  measure_ = grid.measure_traffic;
  traffic_ = {};
  threads_.assign(grid.threads, {});
  registers_.resize(size_t{grid.threads} * entry.registers);
  origins_.resize(registers_.size());
  for (uint32_t block = 0; block < grid.blocks && fault_.empty(); ++block)
    RunBlock(entry, grid, block);
  return fault_;
}

void Runner::RunBlock(const Entry& entry, const Grid& grid, uint32_t block) {
  block_ = block;
  live_ = grid.threads;
  shared_.assign(entry.shared_bytes, std::byte{0xFF});
  shared_state_.assign(entry.shared_bytes, Shared::kUnwritten);
  copies_.assign(grid.threads, {});
  std::fill(registers_.begin(), registers_.end(), 0xdeadbeefdeadbeef);  // nobody's value
  std::fill(origins_.begin(), origins_.end(), 0);
  for (uint32_t i = 0; i < grid.threads; ++i) {
    Thread& thread = threads_[i];
    thread = {&registers_[size_t{i} * entry.registers], &origins_[size_t{i} * entry.registers], 0,
              i, Thread::State::kReady};
    thread.registers[kTidX] = i;
    thread.registers[kNtidX] = grid.threads;
    thread.registers[kCtaidX] = block;
    thread.registers[kNctaidX] = grid.blocks;
  }
  while (live_ > 0) {
    bool progress = false;
    for (uint32_t k = 0; k < grid.threads; ++k) {
      Thread& thread = threads_[grid.reverse ? grid.threads - 1 - k : k];
      if (thread.state != Thread::State::kReady) continue;
      progress = true;
      if (!RunThread(entry, thread)) return;
    }
    for (uint32_t warp = 0; warp * kWarp < grid.threads; ++warp) {
      if (!Shuffle(entry, warp, &progress)) return;
    }
    const auto waiting = std::count_if(threads_.begin(), threads_.end(), [](const Thread& t) {
      return t.state == Thread::State::kBarrier;
    });
    if (live_ > 0 && static_cast<uint32_t>(waiting) == live_) {
      progress = true;
      for (Thread& thread : threads_) {
        if (thread.state != Thread::State::kBarrier) continue;
        thread.state = Thread::State::kReady;
        ++thread.pc;
      }
    }
    if (live_ > 0 && !progress) {
      fault_ =
          absl::StrFormat("%d threads wait for ever in block %d of %s", live_, block, entry.name);
      return;
    }
  }
  if (measure_) CloseTraffic();
}

bool Runner::RunThread(const Entry& entry, Thread& thread) {
  for (;;) {
    if (thread.pc >= static_cast<int>(entry.code.size()) || steps_left_ == 0) {
      fault_ = steps_left_ == 0 ? "the step limit is reached in " + entry.name
                                : "ran past the end of " + entry.name;
      return false;
    }
    const Instruction& instruction = entry.code[thread.pc];
    --steps_left_;
    if (instruction.guard >= 0 &&
        static_cast<bool>(thread.registers[instruction.guard] & 1) == instruction.guard_negated) {
      ++thread.pc;
      continue;
    }
    if (instruction.flow == Flow::kNext) {
      if (!instruction.run(*this, thread, instruction)) return false;
      ++thread.pc;
    } else if (instruction.flow == Flow::kBranch) {
      thread.pc = instruction.target;
    } else if (instruction.flow == Flow::kReturn) {
      thread.state = Thread::State::kDone;
      --live_;
      return true;
    } else {
      thread.state =
          instruction.flow == Flow::kBarrier ? Thread::State::kBarrier : Thread::State::kShuffle;
      return true;
    }
  }
}

// What a warp's lanes do together, under its whole mask: shfl.sync.bfly, or bar.warp.sync. All
// lanes that live must be there.
bool Runner::Shuffle(const Entry& entry, uint32_t warp, bool* moved) {
  const uint32_t first = warp * kWarp, end = std::min<uint32_t>(first + kWarp, threads_.size());
  int pc = -1;
  for (uint32_t i = first; i < end; ++i) {
    const Thread& thread = threads_[i];
    if (thread.state == Thread::State::kDone) continue;
    if (thread.state != Thread::State::kShuffle) return true;
    if (pc >= 0 && thread.pc != pc)
      return Fault(thread, entry.code[thread.pc],
                   "lanes of a warp are at two different shuffles or barriers");
    pc = thread.pc;
  }
  if (pc < 0) return true;
  const Instruction& instruction = entry.code[pc];
  auto read = [&](const Thread& thread, int i) {
    const Operand& o = instruction.operands[i];
    return static_cast<uint32_t>(o.reg >= 0 ? thread.registers[o.reg] : o.value);
  };
  const bool shuffles = instruction.flow == Flow::kShuffle;
  std::array<uint32_t, kWarp> values{};
  for (uint32_t i = first; shuffles && i < end; ++i) values[i - first] = read(threads_[i], 1);
  for (uint32_t i = first; i < end; ++i) {
    Thread& thread = threads_[i];
    if (thread.state == Thread::State::kDone) continue;
    if (!shuffles) {
      if (read(thread, 0) != 0xffffffffu)
        return Fault(thread, instruction, "a barrier of other than a whole warp");
      continue;
    }
    const uint32_t from = (i - first) ^ read(thread, 2);
    if (read(thread, 3) != 31 || read(thread, 4) != 0xffffffffu)
      return Fault(thread, instruction, "a shuffle of other than whole warps");
    if (first + from >= end || threads_[first + from].state == Thread::State::kDone)
      return Fault(thread, instruction, "a shuffle reads a lane that takes no part");
    thread.registers[instruction.operands[0].reg] = values[from];
  }
  for (uint32_t i = first; i < end; ++i) {
    if (threads_[i].state != Thread::State::kShuffle) continue;
    threads_[i].state = Thread::State::kReady;
    ++threads_[i].pc;
  }
  *moved = true;
  return true;
}

bool Runner::Fault(const Thread& thread, const Instruction& instruction, const std::string& why) {
  fault_ = absl::StrFormat("%s at PTX line %d, block %d thread %d: %s", why, instruction.line,
                           block_, thread.number, instruction.text);
  return false;
}

uint32_t Runner::OriginOf(uint64_t address) const {
  const auto after =
      std::upper_bound(allocations_.begin(), allocations_.end(), address,
                       [](uint64_t at, const Allocation& a) { return at < a.begin; });
  if (after == allocations_.begin()) return 0;
  const Allocation& allocation = *std::prev(after);
  // One past the end is still this one's pointer.
  if (address - allocation.begin > allocation.bytes) return 0;
  return static_cast<uint32_t>(after - allocations_.begin());
}

std::byte* Runner::Access(Thread& thread, const Instruction& instruction, const Operand& at,
                          uint32_t bytes, bool write) {
  const uint64_t address = at.value + (at.reg >= 0 ? thread.registers[at.reg] : 0);
  if (address % bytes != 0) {
    Fault(thread, instruction, absl::StrFormat("misaligned access of %d bytes", bytes));
    return nullptr;
  }
  if (instruction.space == Space::kParam) {
    if (!write && address + bytes <= params_.size() && address + bytes >= address)
      return const_cast<std::byte*>(params_.data()) + address;
    Fault(thread, instruction, "outside of the parameters");
    return nullptr;
  }
  if (instruction.space == Space::kShared)
    return AccessShared(thread, instruction, address & 0xffffffff, bytes, write);
  return AccessGlobal(thread, instruction, address, at.reg >= 0 ? thread.origins[at.reg] : 0, bytes,
                      write);
}

std::byte* Runner::AccessShared(Thread& thread, const Instruction& instruction, uint64_t address,
                                uint32_t bytes, bool write) {
  if (address + bytes > shared_.size()) {
    Fault(thread, instruction, "outside of shared memory");
    return nullptr;
  }
  for (uint64_t i = address; i < address + bytes; ++i) {
    if (write) {
      shared_state_[i] = Shared::kWritten;
    } else if (shared_state_[i] != Shared::kWritten) {
      Fault(thread, instruction,
            shared_state_[i] == Shared::kUnwritten
                ? "reads shared memory that nobody wrote"
                : "reads shared memory that an asynchronous copy has yet to write");
      return nullptr;
    }
  }
  return shared_.data() + address;
}

std::byte* Runner::AccessGlobal(Thread& thread, const Instruction& instruction, uint64_t address,
                                uint32_t origin, uint32_t bytes, bool write) {
  const char* const what = write ? "a store" : "a load";
  if (origin == 0) {
    Fault(thread, instruction,
          absl::StrFormat("%s of %d bytes at %#x, which is no allocation's address", what, bytes,
                          address));
    return nullptr;
  }
  const Allocation& own = allocations_[origin - 1];
  if (address < own.begin || address - own.begin > own.bytes ||
      own.bytes - (address - own.begin) < bytes) {
    const uint32_t other = OriginOf(address);
    const bool inside = other != 0 && other != origin &&
                        address - allocations_[other - 1].begin < allocations_[other - 1].bytes;
    Fault(thread, instruction,
          absl::StrFormat("%s of %d bytes outside of its pointer's allocation%s", what, bytes,
                          inside ? ", inside of another" : ""));
    return nullptr;
  }
  if (measure_) {
    const uint32_t visit = visits_[{thread.number, thread.pc}]++;
    auto& sectors = sectors_[{thread.number / kWarp, thread.pc, visit}];
    for (uint64_t s = address / kSector; s <= (address + bytes - 1) / kSector; ++s)
      sectors.push_back(s);
    traffic_.asked += bytes;
  }
  return reinterpret_cast<std::byte*>(address);
}

bool Runner::CopyAsync(Thread& thread, const Instruction& i, uint64_t bytes) {
  const Operand &to = i.operands[0], &from = i.operands[1];
  const uint64_t shared = (to.value + (to.reg >= 0 ? thread.registers[to.reg] : 0)) & 0xffffffff;
  const uint64_t global = from.value + (from.reg >= 0 ? thread.registers[from.reg] : 0);
  const bool known = bytes == 16 || (i.variant == 'a' && (bytes == 4 || bytes == 8));
  if (!known) return Fault(thread, i, absl::StrFormat("an asynchronous copy of %d bytes", bytes));
  if (shared % bytes != 0 || global % bytes != 0)
    return Fault(thread, i, absl::StrFormat("misaligned access of %d bytes", bytes));
  const auto size = static_cast<uint32_t>(bytes);
  const std::byte* const source =
      AccessGlobal(thread, i, global, from.reg >= 0 ? thread.origins[from.reg] : 0, size, false);
  if (source == nullptr || AccessShared(thread, i, shared, size, true) == nullptr) return false;
  std::fill_n(shared_state_.begin() + static_cast<ptrdiff_t>(shared), bytes, Shared::kOnItsWay);
  PendingCopies& copies = copies_[thread.number];
  copies.list.push_back({shared, source, bytes, copies.groups});
  return true;
}

void Runner::CommitCopies(Thread& thread) { ++copies_[thread.number].groups; }

void Runner::WaitForCopies(Thread& thread, uint64_t groups_left) {
  PendingCopies& copies = copies_[thread.number];
  std::erase_if(copies.list, [&](const PendingCopy& copy) {
    if (copy.group + groups_left >= copies.groups) return false;
    std::copy_n(copy.from, copy.bytes, shared_.begin() + static_cast<ptrdiff_t>(copy.to));
    std::fill_n(shared_state_.begin() + static_cast<ptrdiff_t>(copy.to), copy.bytes,
                Shared::kWritten);
    return true;
  });
}

void Runner::CloseTraffic() {
  for (auto& [where, sectors] : sectors_) {
    std::sort(sectors.begin(), sectors.end());
    traffic_.moved += (std::unique(sectors.begin(), sectors.end()) - sectors.begin()) * kSector;
  }
  sectors_.clear();
  visits_.clear();
}

}  // namespace kvarve::ptx
