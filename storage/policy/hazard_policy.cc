#include "storage/policy/hazard_policy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <limits>
#include <vector>

#include "storage/base/chunked_array.h"
#include "storage/base/prefetch.h"
#include "storage/base/status_macros.h"
#include "storage/policy/ghost_runs.h"
#include "storage/policy/reuse_model.h"

namespace kvarve {
namespace {

// Of a resident, but its key, which no touch needs; all zero: unknown id.
struct Resident {
  uint32_t last_touch = 0;  // an access number
  uint32_t place = 0;       // in its group's candidates
  uint16_t group = 0;
  uint8_t of_class = 0;
  uint8_t hits = 0;
  uint8_t chain = 0;  // ReuseClass's feature, of the last request
  uint8_t cost = 0;   // octaves and quarters of microseconds; 0: unknown
  uint8_t flags = 0;
};
static_assert(sizeof(Resident) == 16 && ReuseClass::kCount <= 256);
constexpr uint8_t kKnown = 1, kEvictable = 2, kLoaded = 4, kCopied = 8;
// What a block that a lower tier has, too, is worth beside one that would have to be computed
// again.
constexpr double kCopyWorth = 0.1;
constexpr uint32_t kMostOwed = 1 << 16;  // beyond it nothing is learned sooner
constexpr uint32_t kOwedShares = 8;
// Weight of a new block's cost in the mean that stands for costs that are not known.
constexpr double kCostWeight = 1.0 / 256;

// ReuseClass::Of(hits, 0, 0).
constexpr std::array<uint8_t, 256> kClassOfHits = [] {
  std::array<uint8_t, 256> of{};
  for (int hits = 0; hits < 256; ++hits)
    of[hits] = static_cast<uint8_t>(ReuseClass::Of(static_cast<uint32_t>(hits), 0, 0));
  return of;
}();

// Reuses of one class at one age, in accesses.
struct Reuses {
  uint32_t of_class = 0, age = 0, count = 0;
  Reuses() = default;
  Reuses(uint32_t of, uint32_t at) : of_class(of), age(at), count(1) {}
  // False: it is another class or age.
  bool Add(uint32_t of, uint32_t at) {
    if (of != of_class || at != age) return false;
    ++count;
    return true;
  }
};

uint8_t CostCode(uint32_t micros) {
  if (micros == 0) return 0;
  const int octave = 31 - std::countl_zero(micros);
  const uint32_t quarter = octave >= 2 ? micros >> (octave - 2) & 3 : 0;
  return static_cast<uint8_t>(1 + 4 * octave + quarter);
}
// REQUIRES: code > 0.
double MicrosOf(uint8_t code) {
  return static_cast<double>(uint64_t{4} + (code - 1) % 4) *
         static_cast<double>(uint64_t{1} << (code - 1) / 4) / 4;
}

class HazardPolicy final : public EvictionPolicy {
 public:
  explicit HazardPolicy(const HazardOptions& options)
      : options_(options),
        model_(options.reuse),
        random_(options.seed),
        next_fit_(options.first_fit) {}

  std::string_view Name() const override { return "hazard"; }

  void OnRequest(const RequestFacts& facts) override {
    ghosts_.BeginRequest(Forgets{this});
    admitted_chain_ = 0;
    request_start_ = clock_ + 1;
    response_ = ReuseClass::OfResponse(facts.response_tokens);
  }

  void OnInsert(uint32_t id, const BlockTraits& traits, bool evictable) override {
    KV_CHECK(traits.group < kMaxPolicyGroups);
    if (id >= residents_.size()) {
      residents_.Resize(id + size_t{1});
      keys_.Resize(id + size_t{1});
    }
    if (traits.group >= candidates_.size()) candidates_.resize(traits.group + 1);
    Resident& resident = residents_[id];
    KV_CHECK(resident.flags == 0);
    const Newcomer newcomer = Look(traits);
    if (newcomer.ghost != nullptr) Count(newcomer.ghost->of_class, newcomer.ghost->last_touch);
    ghosts_.Came(id, traits.key, Forgets{this});
    keys_[id] = traits.key;
    resident.last_touch = ++clock_;
    resident.hits = newcomer.hits;
    resident.chain = newcomer.chain;
    resident.of_class = static_cast<uint8_t>(newcomer.of_class);
    resident.group = static_cast<uint16_t>(traits.group);
    resident.cost = CostCode(traits.recompute_us);
    resident.flags = traits.is_loaded ? kKnown | kLoaded | kCopied : kKnown;
    NoteCost(traits.recompute_us);
    ghosts_.GrowTo(++size_);
    if (evictable) AddCandidate(id);
    Work();
  }

  void OnTouch(uint32_t id) override { HazardPolicy::OnTouchRun(std::span(&id, 1)); }

  // Nothing but this is paid by a read. Blocks of one run mostly share class and age: such reuses
  // are counted together.
  void OnTouchRun(std::span<const uint32_t> ids) override {
    if (ids.empty()) return;
    KV_CHECK(Known(ids.back()));
    const Resident& deepest = residents_[ids.back()];
    const int chain =
        InRequest(deepest.last_touch) ? deepest.chain : 1 + ReuseClass::OfHits(deepest.hits);
    const int of_no_hits = ReuseClass::Of(0, response_, chain);
    Reuses reuses;
    uint32_t touched = 0;
    for (size_t i = ids.size(); i-- > 0;) {
      const uint32_t id = ids[i];
      KV_CHECK(Known(id));
      Resident& resident = residents_[id];
      if (InRequest(resident.last_touch)) continue;  // one access a request
      if (victim_ == id) victim_ = kNoVictim;
      if ((resident.flags & kLoaded) != 0) {  // it was counted as it came
        resident.flags &= static_cast<uint8_t>(~kLoaded);
        resident.last_touch = ++clock_;
        continue;
      }
      if (!reuses.Add(resident.of_class, AgeOf(resident.last_touch))) {
        CountReuses(reuses);
        reuses = Reuses(resident.of_class, AgeOf(resident.last_touch));
      }
      ++touched;
      resident.hits = static_cast<uint8_t>(std::min(resident.hits + 1, 255));
      resident.last_touch = ++clock_;
      resident.chain = static_cast<uint8_t>(chain);
      resident.of_class = static_cast<uint8_t>(of_no_hits + kClassOfHits[resident.hits]);
    }
    CountReuses(reuses);
    owed_ = std::min(owed_ + touched, kMostOwed);
  }

  void PrefetchTouch(std::span<const uint32_t> ids) const override {
    for (uint32_t id : ids) PrefetchForRead(&residents_[id]);
  }

  void OnEvictable(uint32_t id, bool evictable) override {
    KV_CHECK(Known(id));
    const bool is = (residents_[id].flags & kEvictable) != 0;
    if (evictable == is) return;
    if (evictable) {
      AddCandidate(id);
      ghosts_.IsLeaf(id);
    } else {
      DropCandidate(id);
    }
  }

  void OnCopied(uint32_t id, bool copied) override {
    KV_CHECK(Known(id));
    uint8_t& flags = residents_[id].flags;
    if (((flags & kCopied) != 0) == copied) return;
    flags = static_cast<uint8_t>(copied ? flags | kCopied : flags & ~kCopied);
    victim_ = kNoVictim;
  }

  void OnRemove(uint32_t id) override {
    KV_CHECK(Known(id));
    Resident& resident = residents_[id];
    if ((resident.flags & kEvictable) != 0) DropCandidate(id);
    ghosts_.Left(id, {keys_[id], resident.last_touch, resident.of_class, resident.hits},
                 Forgets{this});
    resident = Resident{};
    --size_;
    if (victim_ == id) victim_ = kNoVictim;
  }

  uint32_t Victim(uint32_t group) override {
    if (group >= candidates_.size() || candidates_[group].size() == 0) return kNoVictim;
    if (victim_ != kNoVictim && residents_[victim_].group == group) return victim_;
    victim_ = Least(candidates_[group]);
    return victim_;
  }

  bool Admits(const BlockTraits& block, uint32_t victim) override {
    if (!model_.trained()) return true;
    KV_CHECK(Known(victim));
    // A put asks for all its blocks before the first of them is here to be a parent.
    const Newcomer newcomer = Look(block, admitted_chain_);
    admitted_chain_ = newcomer.chain;
    const double worth = model_.Worth(newcomer.of_class, 0) * CostOf(CostCode(block.recompute_us));
    return worth > WorthOf(residents_[victim]) / options_.tie;
  }

  void OnRefuse(const BlockTraits& block) override {
    const Newcomer newcomer = Look(block);
    if (newcomer.ghost != nullptr) {
      if (InRequest(newcomer.ghost->last_touch)) return;
      Count(newcomer.ghost->of_class, newcomer.ghost->last_touch);
    }
    ghosts_.Refused({block.key, ++clock_, newcomer.of_class, newcomer.hits}, Forgets{this});
    Work();
  }

  uint64_t LastTouch(uint32_t id) const override { return residents_[id].last_touch; }

  uint64_t MemoryBytes() const override {
    uint64_t bytes = sizeof(*this) + residents_.MemoryBytes() + keys_.MemoryBytes() +
                     ghosts_.MemoryBytes() + candidates_.capacity() * sizeof(Candidates) +
                     model_.MemoryBytes();
    for (const Candidates& candidates : candidates_) bytes += candidates.MemoryBytes();
    return bytes;
  }

  PolicyLearning Learning() const override { return {ghosts_.table().size(), model_.trained()}; }

  std::string Save() const override { return model_.Save(); }
  bool Load(std::string_view saved) override { return model_.Load(saved); }

 private:
  using Candidates = ChunkedArray<uint32_t, 4096>;

  // A block that is not here, as it would be seen if it came now.
  struct Newcomer {
    const Ghost* ghost = nullptr;  // null: never seen, or forgotten
    uint16_t of_class = 0;
    uint8_t hits = 0, chain = 0;
  };

  bool Known(uint32_t id) const {
    return id < residents_.size() && (residents_[id].flags & kKnown) != 0;
  }
  bool InRequest(uint32_t touch) const { return static_cast<int32_t>(touch - request_start_) >= 0; }
  uint32_t AgeOf(uint32_t last_touch) const { return clock_ - last_touch; }

  // `chain`: where neither it nor its parent is known.
  Newcomer Look(const BlockTraits& traits, uint8_t chain = 0) {
    Newcomer newcomer;
    newcomer.chain = chain;
    newcomer.ghost = ghosts_.Next(traits.key);
    if (newcomer.ghost != nullptr) {
      newcomer.hits = static_cast<uint8_t>(std::min(newcomer.ghost->hits + 1, 255));
      newcomer.chain = static_cast<uint8_t>(1 + ReuseClass::OfHits(newcomer.ghost->hits));
    } else if (Known(traits.parent)) {
      newcomer.chain = residents_[traits.parent].chain;
    }
    newcomer.of_class =
        static_cast<uint16_t>(ReuseClass::Of(newcomer.hits, response_, newcomer.chain));
    return newcomer;
  }

  void CountReuses(const Reuses& reuses) {
    if (reuses.count > 0)
      model_.Reused(reuses.of_class, ReuseModel::AgeOf(reuses.age), reuses.count);
  }
  void Count(int of_class, uint32_t last_touch) {
    model_.Reused(of_class, ReuseModel::AgeOf(AgeOf(last_touch)));
  }

  struct Forgets {
    HazardPolicy* policy;
    void operator()(const Ghost& gone) const {
      policy->model_.Forgotten(gone.of_class, ReuseModel::AgeOf(policy->AgeOf(gone.last_touch)),
                               gone.length);
    }
  };

  void NoteCost(uint32_t micros) {
    if (micros == 0) return;
    mean_cost_ = mean_cost_ == 0 ? micros : mean_cost_ + (micros - mean_cost_) * kCostWeight;
  }
  // One that nobody told is like the others.
  double CostOf(uint8_t code) const {
    if (code != 0) return MicrosOf(code);
    return mean_cost_ == 0 ? 1 : mean_cost_;
  }

  double WorthOf(const Resident& resident) const {
    return model_.Worth(resident.of_class, ReuseModel::AgeOf(AgeOf(resident.last_touch))) *
           CostOf(resident.cost) * ((resident.flags & kCopied) != 0 ? kCopyWorth : 1);
  }

  // The oldest of those that are worth no more than the least, or as good as that.
  uint32_t Least(const Candidates& candidates) {
    Sample(candidates);
    double least = std::numeric_limits<double>::infinity();
    worths_.assign(sample_.size(), 0);  // all the same until something is learned
    if (model_.trained()) {
      for (size_t i = 0; i < sample_.size(); ++i) {
        worths_[i] = WorthOf(residents_[sample_[i]]);
        least = std::min(least, worths_[i]);
      }
    }
    uint32_t oldest = kNoVictim, oldest_age = 0;
    for (size_t i = 0; i < sample_.size(); ++i) {
      if (worths_[i] > least * options_.tie) continue;
      const uint32_t age = AgeOf(residents_[sample_[i]].last_touch);
      if (oldest == kNoVictim || age > oldest_age) {
        oldest = sample_[i];
        oldest_age = age;
      }
    }
    return oldest;
  }

  void Sample(const Candidates& candidates) {
    const bool all = candidates.size() <= options_.sample;
    sample_.resize(all ? candidates.size() : options_.sample);
    for (size_t i = 0; i < sample_.size(); ++i) {
      sample_[i] = candidates[all ? i : Below(candidates.size())];
      PrefetchForRead(&residents_[sample_[i]]);
    }
  }

  size_t Below(size_t bound) {  // splitmix64 (Steele, Lea, Flood 2014)
    random_ += 0x9e3779b97f4a7c15u;
    uint64_t mixed = random_;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    mixed ^= mixed >> 31;
    return static_cast<size_t>(static_cast<unsigned __int128>(mixed) * bound >> 64);
  }

  void AddCandidate(uint32_t id) {
    Resident& resident = residents_[id];
    Candidates& candidates = candidates_[resident.group];
    resident.place = static_cast<uint32_t>(candidates.size());
    resident.flags |= kEvictable;
    candidates.PushBack(id);
    victim_ = kNoVictim;
  }

  void DropCandidate(uint32_t id) {
    Resident& resident = residents_[id];
    Candidates& candidates = candidates_[resident.group];
    const uint32_t last = candidates[candidates.size() - 1];
    candidates[resident.place] = last;
    residents_[last].place = resident.place;
    candidates.PopBack();
    resident.flags &= static_cast<uint8_t>(~kEvictable);
    if (victim_ == id) victim_ = kNoVictim;
  }

  // Of the learning an access has a share, which newcomers do: touches only owe it, since who only
  // reads has no need of victims. A newcomer does its own and some of what is owed, so that no call
  // pays for many.
  void Work() {
    for (uint32_t n = std::min<uint32_t>(++owed_, kOwedShares); n > 0; --n) WorkShare();
  }

  // Some of the census, or a step of the fit after it.
  void WorkShare() {
    --owed_;
    ++accesses_;
    if (fitting_) {
      if (!model_.FitStep(static_cast<double>(accesses_ - last_fit_))) {
        fitting_ = false;
        next_fit_ = accesses_ + options_.fit_every;
        last_fit_ = accesses_;
      }
      return;
    }
    if (accesses_ < next_fit_) return;
    for (uint32_t n = 0; n < options_.census; ++n) {
      if (cursor_ < residents_.size()) {
        const Resident& resident = residents_[cursor_];
        if (resident.flags != 0) Waits(resident.of_class, resident.last_touch, 1);
      } else if (cursor_ < residents_.size() + ghosts_.table().places()) {
        const Ghost& ghost = ghosts_.table().At(cursor_ - residents_.size());
        if (ghost.key != 0) Waits(ghost.of_class, ghost.last_touch, ghost.length);
      } else {
        cursor_ = 0;
        fitting_ = true;
        return;
      }
      ++cursor_;
    }
  }

  void Waits(int of_class, uint32_t last_touch, uint32_t blocks) {
    model_.Waits(of_class, ReuseModel::AgeOf(AgeOf(last_touch)), blocks);
  }

  const HazardOptions options_;
  ReuseModel model_;
  GhostRuns ghosts_;
  ChunkedArray<Resident, 131072, /*kHuge=*/true> residents_;
  ChunkedArray<uint64_t, 32768> keys_;  // of each resident
  std::vector<Candidates> candidates_;  // of each group: its evictable ids, in no order
  std::vector<uint32_t> sample_;
  std::vector<double> worths_;  // of sample_
  size_t size_ = 0;
  double mean_cost_ = 0;  // microseconds; 0: none is known
  uint64_t random_;
  uint32_t clock_ = 0;          // accesses; wraps
  uint32_t request_start_ = 1;  // the first access of the request
  int response_ = ReuseClass::OfResponse(RequestFacts::kUnknownTokens);
  uint8_t admitted_chain_ = 0;   // of the request's newcomer that Admits was asked for last
  uint32_t victim_ = kNoVictim;  // named last, while nothing of it changed
  uint64_t accesses_ = 0, last_fit_ = 0, next_fit_;
  size_t cursor_ = 0;  // of the census
  bool fitting_ = false;
  uint32_t owed_ = 0;  // shares of earlier accesses
};

}  // namespace

std::unique_ptr<EvictionPolicy> NewHazardPolicy(const HazardOptions& options) {
  return std::make_unique<HazardPolicy>(options);
}

}  // namespace kvarve
