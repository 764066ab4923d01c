#include "storage/segment/simulation_testing.h"

#include <algorithm>
#include <cstring>

namespace kvarve::testing {
namespace {

constexpr uint64_t kSegmentBytes = 192 << 10;
constexpr uint64_t kSlots = 8;
constexpr uint64_t kNamespaces = 3;
constexpr uint64_t kKeys = 4000;

bool KeyLess(const BlockKey& a, const BlockKey& b) { return a.bytes < b.bytes; }

FaultPlan PlanOf(SimKind kind, uint64_t random) {
  FaultPlan plan;
  plan.slow = random % 2 == 0 ? 20 : 0;
  if (kind == SimKind::kFaulty) {
    plan.write_error = 60;
    plan.short_write = 90;
    plan.no_space = 150;
    plan.read_error = 80;
    plan.short_read = 120;
    plan.sync_error = 10;
  }
  if (kind == SimKind::kLying) {
    plan.lost_write = 30;
    plan.misdirected_write = 40;
    plan.flipped_read = 30;
    plan.flipped_write = 40;
  }
  return plan;
}

// Every third block is in a form that the log does not know: it keeps what it is told of it.
void SayForm(uint64_t n, BlockRecord* record) {
  const bool is_raw = n % 3 != 0;
  record->repr = is_raw ? 0 : 1;
  record->raw_len = is_raw ? record->stored_len : 2 * record->stored_len;
  record->c64_raw = is_raw ? record->c64_stored : ~record->c64_stored;
}

}  // namespace

Simulation::Simulation(uint64_t seed, SimKind kind, PlantedBug bug)
    : seed_(seed),
      kind_(kind),
      bug_(bug),
      state_(seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(kind)),
      number_of_(&KeyLess) {
  plan_ = PlanOf(kind, Below(2));
  disk_ = std::make_unique<SimDisk>(kFirstSlotOffset + kSlots * kSegmentBytes, seed);
  catalogue_ = std::make_unique<SimCatalogue>(disk_.get());
  FormatOptions format;
  format.segment_bytes = kSegmentBytes;
  format.overwrite = false;
  format.random = [this](std::span<uint8_t> bytes) {
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(Below(256));
  };
  KV_CHECK(FormatOpenDevice(disk_.get(), format).ok());
}

Simulation::~Simulation() {
  while (disk_->RunOne()) {
  }
}

uint64_t Simulation::Below(uint64_t bound) {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (z ^ (z >> 31)) % bound;
}

void Simulation::Fail(const std::string& what) {
  if (outcome_.failure.empty())
    outcome_.failure = absl::StrFormat("seed %d kind %d, life %d: %s", seed_,
                                       static_cast<int>(kind_), outcome_.restarts, what);
}

NamespaceId Simulation::NsOf(uint64_t n) {
  NamespaceId ns;
  ns.bytes[0] = static_cast<uint8_t>(n + 1);
  return ns;
}

uint32_t Simulation::BytesOf(uint64_t key) {
  return static_cast<uint32_t>(key % 11 == 0 ? 40000 + key : 1000 + key * 37 % 9000);
}

SimOutcome Simulation::Run(int lives, int steps) {
  for (int life = 0; life < lives && outcome_.failure.empty(); ++life) {
    Start();
    if (!log_) break;  // lies hit the superblocks; refusing is right
    disk_->SetPlan(plan_);
    disk_->DieAfter(1 + Below(static_cast<uint64_t>(steps) * 6));
    for (int step = 0; step < steps && !disk_->dead() && outcome_.failure.empty(); ++step) Step();
    Die();
  }
  outcome_.faults = disk_->faults();
  return outcome_;
}

void Simulation::Start() {
  ++outcome_.restarts;
  known_.clear();
  erases_ = {};
  sealed_.clear();
  disk_->SetPlan({});
  if (kind_ == SimKind::kLying) disk_->SetPlan({.flipped_read = 50});
  if (OneIn(3)) catalogue_->values.clear();
  for (auto& [id, value] : catalogue_->values) {
    if (OneIn(20)) value[Below(value.size())] ^= 1;
  }
  LogOptions options;
  options.depth = 1 + static_cast<uint32_t>(Below(6));
  options.free_slots_goal = 2;
  options.wall_seconds = [] { return 1'800'000'000; };
  options.bug = bug_;
  max_id_before_ = max_id_;
  auto log = SegmentLog::Open(disk_.get(), catalogue_.get(), this, options);
  if (!log.ok()) {
    if (kind_ != SimKind::kLying) Fail("does not open: " + log.status().ToString());
    return;
  }
  log_ = *std::move(log);
  KV_CHECK(log_->Recover().ok());
  const LogStats stats = log_->Stats();
  outcome_.from_frames += stats.from_frames;
  outcome_.from_footer += stats.from_footer;
  outcome_.from_catalogue += stats.from_catalogue;
  CheckAll();
  if (!OneIn(4) || kind_ == SimKind::kLying) return;
  // Recovering changes nothing that recovering finds.
  std::map<Name, Known> first;
  first.swap(known_);
  erases_ = {};
  log_.reset();
  log = SegmentLog::Open(disk_.get(), catalogue_.get(), this, options);
  KV_CHECK(log.ok() && (*log)->Recover().ok());
  log_ = *std::move(log);
  CheckAll();
  const bool same = std::equal(first.begin(), first.end(), known_.begin(), known_.end(),
                               [](const auto& a, const auto& b) {
                                 return a.first == b.first && a.second.at == b.second.at;
                               });
  if (!same) Fail("a second recovery found something else");
}

void Simulation::Step() {
  switch (Below(12)) {
    case 0:
      log_->Maintain();
      break;
    case 1:
      log_->Drain();
      break;
    case 2:
      if (OneIn(6)) {
        log_->Seal();
      } else if (OneIn(5)) {
        EraseOne();
      } else {
        log_->Scrub(OneIn(3) ? 0 : max_id_ - Below(kSlots));
      }
      break;
    case 3:
    case 4:
      StartReads();
      break;
    default:
      PutChain();
  }
}

void Simulation::PutChain() {
  const NamespaceId ns = NsOf(Below(kNamespaces));
  const uint64_t first = Below(kKeys);
  const uint64_t count = 1 + Below(12);
  std::vector<AppendBlock> blocks;
  std::vector<AlignedBuffer> memory;
  for (uint64_t n = first; n < first + count; ++n) {
    if (known_.contains({ns, n})) continue;
    const BlockKey key = KeyOf(n);
    number_of_[key] = n;
    AppendBlock block;
    block.ns = ns;
    BlockRecord& record = block.record;
    record.key = key;
    record.key_len = 32;
    record.stored_len = record.raw_len = BytesOf(n);
    record.depth_flags = static_cast<uint32_t>(n - first);
    memory.emplace_back(record.stored_len);
    FillBlock(ns.bytes[0], key, memory.back().span().first(record.stored_len));
    record.c64_raw = record.c64_stored = BlockChecksum(ChecksumSeed(ns, key, record.stored_len),
                                                       memory.back().data(), record.stored_len);
    SayForm(n, &record);
    block.data = memory.back().data();
    blocks.push_back(block);
  }
  log_->Append(StreamClass::kFresh, blocks);
  log_->Drain();  // the memory goes
}

// Reads that are still under way while the log goes on.
void Simulation::StartReads() {
  if (known_.empty()) return;
  auto it = known_.begin();
  std::advance(it, static_cast<ptrdiff_t>(Below(known_.size())));
  for (uint64_t n = 1 + Below(6); n > 0 && it != known_.end(); --n, ++it) {
    const auto memory = std::make_shared<AlignedBuffer>(it->second.record.stored_len);
    const Known known = it->second;
    const Name name = it->first;
    ++reading_;
    log_->Read({{known.at, name.first, known.record.key, known.record.stored_len,
                 known.record.c64_stored, memory->data()}},
               OneIn(2) ? IoClass::kDemand : IoClass::kPrefetch,
               [this, memory, known, name](size_t, const absl::Status& status) {
                 --reading_;
                 const auto bytes = memory->span().first(known.record.stored_len);
                 if (status.ok() && !IsBlock(name.first.bytes[0], known.record.key, bytes))
                   Fail("wrong bytes were read");
                 if (kind_ == SimKind::kHonest && !power_lost_ && absl::IsDataLoss(status))
                   Fail("a checksum failed without a fault");
               });
    if (OneIn(2)) disk_->RunOne();
  }
}

// Some that are there, and some beside them.
void Simulation::EraseKeys(const NamespaceId& ns) {
  uint64_t first = Below(kKeys);
  if (const auto it = known_.lower_bound({ns, first}); it != known_.end()) first = it->first.second;
  std::vector<BlockKey> keys;
  std::vector<Name> names;
  for (uint64_t n = first, end = first + 1 + Below(20); n < end; ++n) {
    keys.push_back(KeyOf(n));
    names.emplace_back(ns, n);
    number_of_[keys.back()] = n;
    known_.erase(names.back());
  }
  maybe_erased_ = true;
  if (!log_->Erase(ns, keys).ok() || disk_->dead()) return;
  maybe_erased_ = false;
  for (const Name& name : names) erased_keys_[name] = max_seq_ + 1;
  ++outcome_.erases;
}

void Simulation::EraseOne() {
  const NamespaceId ns = NsOf(Below(kNamespaces));
  if (OneIn(2)) return EraseKeys(ns);
  std::erase_if(known_, [&](const auto& entry) { return entry.first.first == ns; });
  maybe_erased_ = true;
  if (!log_->Erase(ns).ok() || disk_->dead()) return;
  maybe_erased_ = false;
  erased_[ns] = max_seq_ + 1;
  ++outcome_.erases;
}

void Simulation::Die() {
  if (OneIn(4)) log_->Seal();
  const bool power_loss = OneIn(2);
  disk_->DieNow();
  log_.reset();
  while (disk_->RunOne()) {
  }
  disk_->Reboot(power_loss ? SimDisk::PowerLoss::kYes : SimDisk::PowerLoss::kNo);
  outcome_.power_losses += power_loss ? 1 : 0;
  power_lost_ |= power_loss;
  must_.clear();
  if (kind_ == SimKind::kLying) return;
  for (const auto& [name, known] : known_) {
    if (!power_loss || known.durable) must_.emplace(name, known);
  }
}

void Simulation::CheckAll() {
  for (const auto& [name, before] : must_) {
    const auto it = known_.find(name);
    if (it == known_.end() || !Check(name, it->second)) {
      Fail(absl::StrFormat(
          "block %d of segment %x, page %d is gone (%s)", name.second, before.at.segment_id,
          before.at.off4k,
          it == known_.end()
              ? "not found"
              : absl::StrFormat("found in segment %x, page %d, lives %d", it->second.at.segment_id,
                                it->second.at.off4k, it->second.record.lives)));
      return;
    }
    ++outcome_.checked;
  }
  must_.clear();
  // What is torn is forgotten at its first read.
  std::erase_if(known_, [&](const auto& entry) { return !Check(entry.first, entry.second); });
}

bool Simulation::Check(const Name& name, const Known& known) {
  const BlockRecord& record = known.record;
  BlockRecord said = record;
  SayForm(name.second, &said);
  if (said.repr != record.repr || said.raw_len != record.raw_len ||
      said.c64_raw != record.c64_raw) {
    Fail("a record says another form than it was written in");
    return false;
  }
  const AlignedBuffer memory(record.stored_len);
  const absl::Status status = ReadBlocks(
      log_.get(), disk_.get(),
      {{known.at, name.first, record.key, record.stored_len, record.c64_stored, memory.data()}},
      IoClass::kDemand)[0];
  if (!status.ok()) return false;
  if (IsBlock(name.first.bytes[0], record.key, memory.span().first(record.stored_len))) return true;
  Fail("wrong bytes after a start");
  return false;
}

// ---- The owner's side.

void Simulation::NewId(uint64_t segment_id) {
  max_id_ = std::max(max_id_, segment_id);
  if (segment_id <= max_id_before_) Fail("a segment id is used twice");
}

void Simulation::OnRecovered(const SegmentTable& table) {
  const std::vector<bool> living = erases_.Living(table);
  for (size_t i = 0; i < living.size(); ++i) {
    const BlockRecord& record = table.records[i];
    const NamespaceId& ns = table.namespaces[record.ns_ref];
    max_seq_ = std::max(max_seq_, record.seq);
    if (!living[i]) continue;
    const auto number = number_of_.find(record.key);
    if (number == number_of_.end()) {
      Fail("a block that was never put");
      continue;
    }
    const uint64_t erased = std::max(erased_[ns], erased_keys_[{ns, number->second}]);
    if (kind_ != SimKind::kLying && record.seq < erased)
      Fail(absl::StrFormat("an erased block is back: segment %x, seq %x < %x",
                           table.facts.segment_id, record.seq, erased));
    known_.try_emplace({ns, number->second},
                       Known{record, {table.facts.segment_id, record.off4k}, true});
  }
}

void Simulation::OnWritten(const AppendBlock& block, const BlockLocation& at) {
  NewId(at.segment_id);
  max_seq_ = std::max(max_seq_, block.record.seq);
  if (disk_->dead()) return;
  ++outcome_.written;
  known_[{block.ns, number_of_.at(block.record.key)}] = {block.record, at, false};
}

void Simulation::OnSealed(uint64_t segment_id) {
  sealed_.insert(segment_id);
  if (disk_->dead()) return;
  for (auto& [name, known] : known_) known.durable |= known.at.segment_id == segment_id;
}

void Simulation::ChooseSurvivors(const SegmentTable& table, Keep what, std::vector<bool>* keep) {
  for (size_t i = 0; i < table.records.size(); ++i) {
    const BlockRecord& record = table.records[i];
    if (record.is_erase()) continue;
    const auto it = known_.find({table.namespaces[record.ns_ref], number_of_.at(record.key)});
    const bool here =
        it != known_.end() && it->second.at == BlockLocation{table.facts.segment_id, record.off4k};
    (*keep)[i] = here && (what == Keep::kAll || (record.key.Word(0) % 4 == 0 && record.lives < 2));
  }
}

void Simulation::OnMoved(const NamespaceId& ns, const BlockRecord& record,
                         const BlockLocation& from, const BlockLocation& to) {
  NewId(to.segment_id);
  const auto it = known_.find({ns, number_of_.at(record.key)});
  if (disk_->dead() || it == known_.end() || it->second.at != from) return;
  ++outcome_.moved;
  it->second.record = record;
  it->second.at = to;
}

void Simulation::OnReclaimed(const SegmentTable& table) {
  if (disk_->dead()) return;
  ++outcome_.reclaimed;
  std::erase_if(known_, [&](const auto& entry) {
    return entry.second.at.segment_id == table.facts.segment_id;
  });
}

}  // namespace kvarve::testing
