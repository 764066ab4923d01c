// Goal: which blocks no lookup can reach is known exactly, whatever comes and goes. Method: random
// blocks under random parents (here, on a device, gone), side by side with a naive list of them
// that is searched whole; in the end everything is dead and leaves, parents before children.
#include "storage/cache/families.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "gtest/gtest.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using testing::SeededRandom;

Families::Name NameOf(uint64_t block) {  // the tree: block's parent is block / 3, at depth - 1
  Families::Name name;
  for (uint64_t at = block; at > 2; at /= 3) ++name.depth;
  std::memcpy(name.key.bytes.data(), &block, sizeof(block));
  return name;
}

class FamiliesTest : public ::testing::Test {
 protected:
  struct Block {
    EntryId id = 0;
    EntryId linked = kNoEntry;  // its parent, when it came after that and that has not left
    bool aside = false;
  };
  static uint32_t GroupOf(uint64_t block) {  // one for all of a tree, as for a namespace
    while (block > 2) block /= 3;
    return block % 2;
  }

  std::optional<uint64_t> ParentOf(uint64_t block) const {
    return block < 3 ? std::nullopt : std::optional(block / 3);
  }
  bool IsHead(uint64_t block) const {  // of a dead family
    const auto parent = ParentOf(block);
    return parent && !here_.contains(*parent) && !on_device_.contains(*parent) &&
           !expected_.contains(*parent) && !here_.at(block).aside;
  }
  bool HasApart(uint64_t parent) const {  // children that are not linked
    return std::ranges::any_of(here_, [&](const auto& b) {
      return ParentOf(b.first) == parent && b.second.linked == kNoEntry;
    });
  }
  Families::Parent Where(uint64_t block) const {
    return on_device_.contains(block) ? Families::Parent::kOnDevice : Families::Parent::kGone;
  }

  void Insert(uint64_t block) {
    const EntryId id = next_++;
    families_.Add(id);
    Block added{id};
    if (const auto parent = ParentOf(block)) {
      if (const auto of = here_.find(*parent); of != here_.end()) {
        added.linked = of->second.id;
        families_.SetParent(id, added.linked);
      } else {
        families_.SetParent(id, NameOf(*parent), GroupOf(block), Where(*parent));
      }
    }
    const bool adopts = HasApart(block);
    ASSERT_EQ(families_.Adopt(id, NameOf(block)), adopts);
    ASSERT_EQ(families_.HasAdopted(id), adopts);
    here_[block] = added;
  }
  void Remove(uint64_t block) {
    const Block removed = here_.at(block);
    const auto parent = ParentOf(block);
    here_.erase(block);
    EntryId adopter = kNoEntry;  // had it and no other
    if (removed.linked == kNoEntry && parent && here_.contains(*parent) && !HasApart(*parent))
      adopter = here_.at(*parent).id;
    ASSERT_EQ(
        families_.Remove(removed.id, removed.linked, NameOf(block), GroupOf(block), Where(block)),
        adopter);
    for (auto& [child, of] : here_) {
      if (of.linked == removed.id) of.linked = kNoEntry;
    }
  }
  void Check() {
    for (const uint32_t group : {0u, 1u}) {
      const EntryId dead = families_.Dead(group);
      bool is_head = false, any = false;
      for (const auto& [block, of] : here_) {
        if (!IsHead(block) || GroupOf(block) != group) continue;
        any = true;
        is_head |= of.id == dead;
      }
      ASSERT_EQ(dead != kNoEntry, any);
      ASSERT_EQ(is_head, any);
    }
  }
  void Step();

  static constexpr uint64_t kBlocks = 80;
  SeededRandom random_{23};
  Families families_;
  std::map<uint64_t, Block> here_;
  std::set<uint64_t> on_device_, expected_;
  EntryId next_ = 0;
};

void FamiliesTest::Step() {
  const uint64_t block = random_.Below(kBlocks);
  switch (random_.Below(8)) {
    case 0:
    case 1:
    case 2:
      if (!here_.contains(block)) Insert(block);
      break;
    case 3:
      if (here_.contains(block)) Remove(block);
      break;
    case 4: {  // it comes to a device, or leaves that
      if (on_device_.erase(block) > 0) {
        families_.ParentGone(NameOf(block));
      } else if (!HasApart(block)) {  // nobody tells families of what comes there
        on_device_.insert(block);
      }
      break;
    }
    case 5: {
      if (here_.contains(block)) break;
      if (expected_.erase(block) > 0) {
        families_.Expect(NameOf(block), false);
      } else if (families_.Expect(NameOf(block), true)) {
        ASSERT_TRUE(HasApart(block));
        expected_.insert(block);
      }
      break;
    }
    case 6: {
      const EntryId dead = families_.Dead(static_cast<uint32_t>(random_.Below(2)));
      if (dead == kNoEntry) break;
      families_.SetAside(dead);
      std::ranges::find_if(here_, [&](const auto& b) {
        return b.second.id == dead;
      })->second.aside = true;
      break;
    }
    case 7:
      if (here_.contains(block)) {
        families_.Return(here_.at(block).id);
        here_.at(block).aside = false;
      }
  }
}

TEST_F(FamiliesTest, RandomOperations) {
  for (int step = 0; step < 30'000 && !HasFatalFailure(); ++step) {
    Step();
    if (!HasFatalFailure()) Check();
  }
}

TEST_F(FamiliesTest, WhatStandsBehindADeadBlockIsDeadWhenThatHasLeft) {
  for (const uint64_t block : {1, 3, 4, 9, 10, 27}) Insert(block);
  EXPECT_EQ(families_.Dead(1), kNoEntry);
  Remove(1);
  std::set<EntryId> left;
  for (EntryId dead; (dead = families_.Dead(1)) != kNoEntry;) {
    left.insert(dead);
    Remove(std::ranges::find_if(here_, [&](const auto& b) { return b.second.id == dead; })->first);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(left.size(), 5u);
  EXPECT_TRUE(here_.empty());
}

TEST(Families, TwelveBytesABlock) {
  Families families;
  for (EntryId id = 0; id < 1'000'000; ++id) families.Add(id);
  EXPECT_LE(families.MemoryBytes(), 12'500'000u);
}

}  // namespace
}  // namespace kvarve
