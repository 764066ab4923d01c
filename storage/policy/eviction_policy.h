// Who leaves first. A policy is pure: no I/O, no locks, no clock reads; the same code runs in the
// daemon and on replayed traces. It knows entries by a dense 32-bit id and is told of every change;
// the caller promises that each id is inserted before anything else and removed at the end.
//
// Leaf first: only an entry that the caller marked evictable (a leaf, not leased) is ever named a
// victim.
//
// THREADS: externally synchronised.  BLOCKS: never.
#ifndef KVARVE_STORAGE_POLICY_EVICTION_POLICY_H_
#define KVARVE_STORAGE_POLICY_EVICTION_POLICY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kvarve {

inline constexpr uint32_t kNoVictim = 0xffffffffu;
inline constexpr uint32_t kMaxPolicyGroups = 4096;

// What a policy may know about a block when it enters.
struct BlockTraits {
  uint32_t depth = 0;  // blocks before it in its chain
  uint64_t bytes = 0;
  uint32_t recompute_us = 0;  // 0: unknown
  uint32_t group =
      0;  // < kMaxPolicyGroups, dense; a victim is asked for by group (one pool's slot size)
  uint64_t key = 0;             // the same whenever this block comes again; 0: unknown
  uint32_t parent = kNoVictim;  // id of the block before it, if that is known
  bool is_loaded = false;       // it came from a lower tier, which has it still: its first touch is
                                // the access
};

// What is told of a request, once, before its first touch or put.
struct RequestFacts {
  static constexpr uint32_t kUnknownTokens = 0xffffffffu;
  uint32_t response_tokens = kUnknownTokens;
};

// What a policy that learns has learned from. Others: zero.
struct PolicyLearning {
  uint64_t ghosts = 0;  // blocks remembered that are not here
  bool is_trained = false;
  friend bool operator==(const PolicyLearning&, const PolicyLearning&) = default;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual std::string_view Name() const = 0;

  // Another request begins: touches, inserts and refusals up to the next are its own. A policy may
  // count age in requests.
  virtual void OnRequest(const RequestFacts& facts) {}

  // The entry is new and counts as touched now; evictable or not as said.
  virtual void OnInsert(uint32_t id, const BlockTraits& traits, bool evictable) = 0;
  // One access. Within one request the caller touches the deepest block first, so that of one chain
  // the root is the most recent.
  virtual void OnTouch(uint32_t id) = 0;
  // OnTouch of each, from the last to the first.
  virtual void OnTouchRun(std::span<const uint32_t> ids) {
    for (size_t i = ids.size(); i-- > 0;) OnTouch(ids[i]);
  }
  // A hint that these few ids are touched soon: a policy may begin to load what it will need.
  virtual void PrefetchTouch(std::span<const uint32_t> ids) const {}
  // Became (or ceased to be) a victim's candidate: gained or lost its last child, its first or last
  // lease.
  virtual void OnEvictable(uint32_t id, bool evictable) = 0;
  // A lower tier has it, too (or has it no more): to lose it here costs a load.
  virtual void OnCopied(uint32_t id, bool copied) {}
  // Gone, whoever decided it.
  virtual void OnRemove(uint32_t id) = 0;

  // The next victim of the group, without removing it: kNoVictim when nothing of it is evictable.
  virtual uint32_t Victim(uint32_t group) = 0;
  // Whether a block that is not here is worth more than `victim`, which would leave for it.
  virtual bool Admits(const BlockTraits& block, uint32_t victim) { return true; }
  // A block of this request that was not kept, because Admits said no to it or to an ancestor.
  virtual void OnRefuse(const BlockTraits& block) {}
  // A number that grows with how recently `id` was touched: to compare victims of two groups.
  virtual uint64_t LastTouch(uint32_t id) const = 0;

  virtual uint64_t MemoryBytes() const = 0;
  virtual PolicyLearning Learning() const { return {}; }

  // What was learned, for a later start: empty where nothing is learned. Load takes only what Save
  // gave, with its version and checksum; anything else leaves the policy as it is, false.
  virtual std::string Save() const { return {}; }
  virtual bool Load(std::string_view saved) { return false; }
};

// "lru": among a group's evictable entries, the one whose last touch is oldest. A touch of what is
// not evictable is one store, of what is evictable O(1) on average; every call is O(log n) at
// worst. 16 bytes an entry.
std::unique_ptr<EvictionPolicy> NewLruPolicy();

// "s3fifo" (Yang et al., SOSP 2023): a small queue of a tenth for newcomers, a main queue for what
// was touched again there or was remembered after it left; the first evictable of a queue leaves.
// A touch is one store. 40 bytes an entry, ghosts included.
std::unique_ptr<EvictionPolicy> NewS3FifoPolicy();

// By name, as the configuration has it; null: there is none of that name.
std::unique_ptr<EvictionPolicy> NewEvictionPolicy(std::string_view name);
inline constexpr std::string_view kEvictionPolicies[] = {"lru", "s3fifo", "hazard"};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_EVICTION_POLICY_H_
