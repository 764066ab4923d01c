// Executes a parsed entry, thread by thread, and checks each access: that it is aligned, inside the
// allocation that its own pointer came from (not merely inside some other live one), and, for
// shared memory, initialised. Races and the order of barriers are the shim's business.
//
// THREADS: one.  BLOCKS: no; a step limit ends what would not.
#ifndef KVARVE_GPU_EMULATOR_PTX_PTX_RUN_H_
#define KVARVE_GPU_EMULATOR_PTX_PTX_RUN_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "gpu/emulator/ptx/ptx_module.h"

namespace kvarve::ptx {

// A live allocation of device memory, or host memory that is mapped into it.
struct Allocation {
  uint64_t begin = 0;
  uint64_t bytes = 0;
};

struct Thread {
  enum class State : uint8_t { kReady, kBarrier, kShuffle, kDone };
  uint64_t* registers = nullptr;
  uint32_t* origins = nullptr;  // the allocation that a register's address came from; 0: none
  int pc = 0;
  uint32_t number = 0;
  State state = State::kReady;
};

// Bytes that threads asked for, and bytes of the 32-byte sectors that their warps touched for it.
struct Traffic {
  uint64_t asked = 0, moved = 0;
};

struct Grid {
  uint32_t blocks = 1;
  uint32_t threads = 1;
  bool reverse = false;  // order of a block's threads
  uint64_t step_limit = 20'000'000'000;
  bool measure_traffic = false;
};

class Runner {
 public:
  // `module` and what `params` names must outlive it.
  Runner(const Module& module, std::span<const Allocation> allocations);

  // Empty, or the first fault: what, PTX line and instruction, block and thread.
  std::string Run(const std::string& entry, std::span<const std::byte> params, const Grid& grid);
  Traffic traffic() const { return traffic_; }

  // For handlers: the host's pointer to so many bytes; null after Fault.
  std::byte* Access(Thread& thread, const Instruction& instruction, const Operand& address,
                    uint32_t bytes, bool write);
  bool Fault(const Thread& thread, const Instruction& instruction, const std::string& why);
  // cp.async: the copy is done when it is waited for, not before; until then what is there may not
  // be read.
  bool CopyAsync(Thread& thread, const Instruction& instruction, uint64_t bytes);
  void CommitCopies(Thread& thread);
  void WaitForCopies(Thread& thread, uint64_t groups_left);
  // The allocation that holds an address, for a pointer that comes out of memory; 0: none.
  uint32_t OriginOf(uint64_t address) const;

 private:
  void RunBlock(const Entry& entry, const Grid& grid, uint32_t block);
  // Runs until the thread has to wait, or ends. False: a fault.
  bool RunThread(const Entry& entry, Thread& thread);
  bool Shuffle(const Entry& entry, uint32_t warp, bool* moved);
  std::byte* AccessGlobal(Thread& thread, const Instruction& instruction, uint64_t address,
                          uint32_t origin, uint32_t bytes, bool write);
  std::byte* AccessShared(Thread& thread, const Instruction& instruction, uint64_t address,
                          uint32_t bytes, bool write);
  void CloseTraffic();

  const Module& module_;
  std::vector<Allocation> allocations_;  // sorted; an origin is an index + 1
  std::span<const std::byte> params_;
  std::vector<Thread> threads_;
  std::vector<uint64_t> registers_;
  std::vector<uint32_t> origins_;
  std::vector<std::byte> shared_;
  enum class Shared : uint8_t { kUnwritten, kWritten, kOnItsWay };
  std::vector<Shared> shared_state_;
  struct PendingCopy {
    uint64_t to = 0;
    const std::byte* from = nullptr;
    uint64_t bytes = 0, group = 0;
  };
  struct PendingCopies {
    uint64_t groups = 0;  // committed
    std::vector<PendingCopy> list;
  };
  std::vector<PendingCopies> copies_;  // by thread
  uint32_t block_ = 0, live_ = 0;
  uint64_t steps_left_ = 0;
  std::string fault_;
  bool measure_ = false;
  Traffic traffic_;
  // (warp, instruction, how often the thread was there) -> sectors
  std::map<std::tuple<uint32_t, int, uint32_t>, std::vector<uint64_t>> sectors_;
  std::map<std::pair<uint32_t, int>, uint32_t> visits_;
};

}  // namespace kvarve::ptx

#endif  // KVARVE_GPU_EMULATOR_PTX_PTX_RUN_H_
