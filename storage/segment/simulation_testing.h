// The log on the simulated disk: random work, deaths of the process and of the power, faults of the
// disk, and what must hold after each start. Everything follows from the seed: a run that failed
// fails again in the same way. Tests only.
//
// Checked:
//  * no byte is ever wrong (a block's bytes are a function of its namespace and key);
//  * after the death of the process every block that was told complete is there, after a power loss
//    every block of a sealed segment, also when it had moved since;
//  * no segment id is used twice, no erased block comes back, recovering twice finds the same;
//  * without faults no checksum ever fails.
#ifndef KVARVE_STORAGE_SEGMENT_SIMULATION_TESTING_H_
#define KVARVE_STORAGE_SEGMENT_SIMULATION_TESTING_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"
#include "storage/io/aligned_buffer.h"
#include "storage/segment/device_format.h"
#include "storage/segment/erased_seqs.h"
#include "storage/segment/segment_log.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/sim_disk.h"

namespace kvarve::testing {

enum class SimKind { kHonest, kFaulty, kLying };

struct SimOutcome {
  std::string failure;  // empty: all held
  uint64_t restarts = 0, power_losses = 0, written = 0, moved = 0, reclaimed = 0, erases = 0;
  uint64_t checked = 0;  // blocks that had to be there, and were
  uint64_t from_frames = 0, from_footer = 0, from_catalogue = 0;
  SimDisk::Faults faults;
};

// A catalogue in memory that outlives the log, loses what a dead process writes, and can be
// damaged.
class SimCatalogue final : public Catalogue {
 public:
  explicit SimCatalogue(const SimDisk* disk) : disk_(disk) {}
  std::optional<std::string> Get(const CatalogueDevice&, uint64_t id) override {
    const auto it = values.find(id);
    return it == values.end() ? std::nullopt : std::optional(it->second);
  }
  absl::Status Put(const CatalogueDevice&, uint64_t id, std::string_view value) override {
    if (!disk_->dead()) values[id] = std::string(value);
    return absl::OkStatus();
  }
  absl::Status Delete(const CatalogueDevice&, uint64_t id) override {
    if (!disk_->dead()) values.erase(id);
    return absl::OkStatus();
  }
  std::vector<uint64_t> Segments(const CatalogueDevice&) override {
    std::vector<uint64_t> ids;
    for (const auto& [id, value] : values) ids.push_back(id);
    return ids;
  }
  std::optional<std::string> GetMeta(std::string_view) override { return std::nullopt; }
  absl::Status PutMeta(std::string_view, std::string_view) override { return absl::OkStatus(); }
  uint64_t errors() const override { return 0; }

  std::map<uint64_t, std::string> values;

 private:
  const SimDisk* const disk_;
};

class Simulation final : public LogOwner {
 public:
  Simulation(uint64_t seed, SimKind kind, PlantedBug bug = PlantedBug::kNone);
  ~Simulation() override;

  SimOutcome Run(int lives, int steps);

  void OnRecovered(const SegmentTable& table) override;
  void OnWritten(const AppendBlock& block, const BlockLocation& at) override;
  void OnNotWritten(const AppendBlock& block, const absl::Status& why) override {}
  void OnSealed(uint64_t segment_id) override;
  void ChooseSurvivors(const SegmentTable& table, Keep what, std::vector<bool>* keep) override;
  void OnMoved(const NamespaceId& ns, const BlockRecord& record, const BlockLocation& from,
               const BlockLocation& to) override;
  void OnReclaimed(const SegmentTable& table) override;

 private:
  using Name = std::pair<NamespaceId, uint64_t>;  // namespace, number of the key
  struct Known {
    BlockRecord record;
    BlockLocation at;
    bool durable = false;
  };

  uint64_t Below(uint64_t bound);
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  void Fail(const std::string& what);
  void NewId(uint64_t segment_id);

  void Start();
  void Step();
  void PutChain();
  void StartReads();
  void EraseOne();
  void EraseKeys(const NamespaceId& ns);
  void Die();
  void CheckAll();
  bool Check(const Name& name, const Known& known);

  static NamespaceId NsOf(uint64_t n);
  static uint32_t BytesOf(uint64_t key);

  const uint64_t seed_;
  const SimKind kind_;
  const PlantedBug bug_;
  uint64_t state_;
  FaultPlan plan_;
  std::unique_ptr<SimDisk> disk_;
  std::unique_ptr<SimCatalogue> catalogue_;
  std::unique_ptr<SegmentLog> log_;

  std::map<BlockKey, uint64_t, bool (*)(const BlockKey&, const BlockKey&)> number_of_;
  std::map<Name, Known> known_;
  std::map<Name, Known> must_;              // of the life before
  std::map<NamespaceId, uint64_t> erased_;  // no record with a smaller seq may come back
  std::map<Name, uint64_t> erased_keys_;    // nor of these
  ErasedSeqs erases_;                       // seen by this recovery
  std::set<uint64_t> sealed_;               // in this life
  uint64_t max_seq_ = 0;
  uint64_t max_id_ = 0;         // of all lives
  uint64_t max_id_before_ = 0;  // of the lives before
  bool power_lost_ = false;
  bool maybe_erased_ = false;  // an erase was under way when the process died
  size_t reading_ = 0;
  SimOutcome outcome_;
};

}  // namespace kvarve::testing

#endif  // KVARVE_STORAGE_SEGMENT_SIMULATION_TESTING_H_
