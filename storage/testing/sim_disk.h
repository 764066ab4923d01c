// A disk of tests, in memory: everything it does follows from its seed. It finishes requests in
// random order, fails some as its plan says, loses what was not synced when the power goes, and is
// never kinder than a real disk.
//
//   SimDisk disk(16 << 20, seed, plan);      // it has no threads: whoever waits for it runs it
//   disk.DieAfter(100); ... disk.Reboot(SimDisk::PowerLoss::kYes);
//
// THREADS: one.  BLOCKS: never.
#ifndef KVARVE_STORAGE_TESTING_SIM_DISK_H_
#define KVARVE_STORAGE_TESTING_SIM_DISK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "storage/io/device.h"

namespace kvarve::testing {

// Each is "one request in so many"; 0: never.
struct FaultPlan {
  // Faults that the disk admits.
  uint32_t read_error = 0;   // EIO
  uint32_t write_error = 0;  // EIO; any of the sectors may have been written
  uint32_t no_space = 0;     // ENOSPC
  uint32_t short_read = 0;
  uint32_t short_write = 0;
  uint32_t sync_error = 0;
  uint32_t slow = 0;  // passed over until hundreds of others are done, or nothing else waits
  // Faults that it does not.
  uint32_t lost_write = 0;
  uint32_t misdirected_write = 0;  // lands elsewhere, whole
  uint32_t flipped_read = 0;       // one bit, in what is read only
  uint32_t flipped_write = 0;      // one bit, at rest

  bool lies() const { return lost_write || misdirected_write || flipped_read || flipped_write; }
};

class SimDisk final : public Device {
 public:
  static constexpr uint64_t kSectorBytes = 512;

  struct Faults {  // injected so far
    uint64_t errors = 0, shorts = 0, slow = 0, lies = 0, lost_sectors = 0, torn_sectors = 0;
  };

  SimDisk(uint64_t bytes, uint64_t seed, FaultPlan plan = {});
  ~SimDisk() override;

  const DeviceInfo& info() const override { return info_; }
  void Submit(IoRequest request) override;
  IoStats Stats() const override { return stats_; }
  bool RunOne() override;

  void SetPlan(FaultPlan plan) { plan_ = plan; }
  // The process, or the machine, ends when `requests` more are finished: those in flight then are
  // done, not done or partly done, and every request fails until Reboot.
  void DieAfter(uint64_t requests) { dies_after_ = static_cast<int64_t>(requests); }
  void DieNow();
  bool dead() const { return dead_; }

  enum class PowerLoss { kNo, kYes };
  // The next start. With a power loss each sector not synced becomes its old self, its new self or,
  // rarely, a mixture; without, what was written stays. REQUIRES: nothing waits.
  void Reboot(PowerLoss power_loss);

  // What lies on the disk now, for tests that damage or compare it.
  std::span<std::byte> image() { return now_; }
  const Faults& faults() const { return faults_; }
  uint64_t finished() const { return finished_; }

 private:
  struct Pending {
    IoRequest request;
    std::vector<uint32_t> dirty_before;  // of a sync: the sectors that it makes durable
    uint64_t not_before = 0;             // of a slow one
  };

  uint64_t Next();
  bool OneIn(uint32_t n) { return n != 0 && Next() % n == 0; }
  size_t PickPending();
  int64_t Perform(Pending* pending);
  int64_t Read(const IoRequest& request);
  int64_t Write(const IoRequest& request);
  // Writes all sectors, or (`some`) each with even odds.
  void Put(uint64_t offset, std::span<const iovec> buffers, uint64_t bytes, bool some);
  void MarkDirty(uint32_t sector);

  DeviceInfo info_;
  FaultPlan plan_;
  uint64_t state_;
  std::vector<std::byte> now_;
  std::vector<std::byte> durable_;
  std::vector<bool> is_dirty_;
  std::vector<uint32_t> dirty_;
  std::vector<Pending> pending_;
  bool dead_ = false;
  int64_t dies_after_ = -1;
  uint64_t finished_ = 0;
  IoStats stats_;
  Faults faults_;
};

}  // namespace kvarve::testing

#endif  // KVARVE_STORAGE_TESTING_SIM_DISK_H_
