#include "gpu/paged/block_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

using testing::SeededRandom;

BlockKey Key(uint64_t n) {
  BlockKey key;
  std::memcpy(key.bytes.data(), &n, sizeof n);
  return key;
}

TEST(PagePoolTest, GivesEachPageOnceAndSaysWhenNoneIsLeft) {
  PagePool pool({4, 16});
  std::set<PageId> pages;
  for (int i = 0; i < 4; ++i) pages.insert(pool.Allocate().value());
  EXPECT_EQ(pages, (std::set<PageId>{0, 1, 2, 3}));
  EXPECT_EQ(pool.Allocate().status().code(), absl::StatusCode::kResourceExhausted);
  pool.Hold(2);
  pool.Release(2);
  EXPECT_EQ(pool.available(), 0);
  pool.Release(2);
  EXPECT_EQ(pool.Allocate().value(), 2);
}

TEST(PagePoolTest, EvictsTheCachedPageThatNobodyHeldForLongest) {
  std::vector<std::pair<PageId, BlockKey>> evicted;
  PagePool pool({3, 16}, [&](PageId page, const BlockKey& key) { evicted.push_back({page, key}); });
  PageId pages[3];
  for (int i = 0; i < 3; ++i) {
    pages[i] = pool.Allocate().value();
    ASSERT_TRUE(pool.Publish(pages[i], Key(i)));
  }
  EXPECT_FALSE(pool.Publish(pages[1], Key(7))) << "a page has one key";
  pool.Release(pages[1]);
  pool.Release(pages[0]);
  pool.Release(pages[2]);
  ASSERT_EQ(pool.FindAndHold(Key(1)), pages[1]);  // used again: now the youngest
  pool.Release(pages[1]);
  EXPECT_EQ(pool.Stats().cached, 3);
  EXPECT_EQ(pool.Allocate().value(), pages[0]);
  EXPECT_EQ(pool.Allocate().value(), pages[2]);
  ASSERT_EQ(evicted.size(), 2u);
  EXPECT_EQ(evicted[0], std::pair(pages[0], Key(0)));
  EXPECT_EQ(evicted[1], std::pair(pages[2], Key(2)));
  EXPECT_EQ(pool.FindAndHold(Key(0)), std::nullopt);
  pool.Forget(
      pages[1]);  // its bytes are not to be trusted: nobody finds it, and nobody hears of it
  EXPECT_EQ(pool.FindAndHold(Key(1)), std::nullopt);
  EXPECT_EQ(pool.Allocate().value(), pages[1]);
  EXPECT_EQ(evicted.size(), 2u);
}

TEST(BlockTableTest, ForksUseOneCopyOfThePromptAndTheFirstDivergentWriteCopiesOnePage) {
  PagePool pool({100, 16});
  BlockTable prompt(&pool);
  ASSERT_TRUE(prompt.Append(10 * 16 + 5).ok());
  EXPECT_EQ(pool.Stats().held, 11);
  std::vector<BlockTable> forks;
  for (int i = 0; i < 20; ++i) forks.push_back(prompt.Fork());
  EXPECT_EQ(pool.Stats().held, 11);
  EXPECT_EQ(pool.Stats().references, 21 * 11);
  EXPECT_TRUE(pool.TakeCopies().empty());

  const PageId last = prompt.pages()[10];
  ASSERT_TRUE(forks[3].Append(1).ok());
  EXPECT_EQ(pool.Stats().held, 12);
  EXPECT_EQ(pool.TakeCopies(), (std::vector<PageCopy>{{last, forks[3].pages()[10]}}));
  EXPECT_TRUE(std::equal(prompt.pages().begin(), prompt.pages().end() - 1, forks[3].pages().begin(),
                         forks[3].pages().end() - 1));
  ASSERT_TRUE(forks[3].Append(10).ok()) << "the page is its own now";
  EXPECT_TRUE(pool.TakeCopies().empty());
  EXPECT_EQ(pool.Stats().held, 12);

  // Of n that share a page n - 1 copy it, also within one step; the last one has it for itself.
  for (BlockTable& fork : forks) ASSERT_TRUE(fork.Append(1).ok());
  EXPECT_EQ(pool.TakeCopies().size(), 19u);
  ASSERT_TRUE(prompt.Append(1).ok());
  EXPECT_TRUE(pool.TakeCopies().empty());
  EXPECT_EQ(prompt.pages()[10], last);
  EXPECT_EQ(pool.Stats().held, 10 + 21 + 1) << "forks[3] filled its page and has one more";
}

TEST(BlockTableTest, AWriteIntoTheMiddleCopiesTheSharedPagesThatItTouches) {
  PagePool pool({100, 16});
  BlockTable table(&pool);
  ASSERT_TRUE(table.Append(64).ok());
  BlockTable fork = table.Fork();
  ASSERT_TRUE(fork.PrepareWrite(20, 20).ok());
  EXPECT_TRUE(pool.TakeCopies().empty());
  ASSERT_TRUE(fork.PrepareWrite(31, 33).ok());
  const std::vector<PageCopy> copies = pool.TakeCopies();
  EXPECT_EQ(copies, (std::vector<PageCopy>{{table.pages()[1], fork.pages()[1]},
                                           {table.pages()[2], fork.pages()[2]}}));
  EXPECT_EQ(fork.Slot(33), fork.pages()[2] * 16 + 1);
  // Twice in one step is one copy.
  ASSERT_TRUE(fork.PrepareWrite(0, 16).ok() && fork.PrepareWrite(3, 4).ok());
  EXPECT_EQ(pool.TakeCopies().size(), 1u);
}

TEST(BlockTableTest, ACopyThatIsNotTakenYetIsNotCopiedOnNorAreItsEndsGivenAway) {
  PagePool pool({3, 16});
  BlockTable a(&pool);
  ASSERT_TRUE(a.Append(4).ok());
  BlockTable b = a.Fork();
  ASSERT_TRUE(b.Append(1).ok());
  BlockTable c = b.Fork();
  EXPECT_EQ(c.Append(1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(c.tokens(), 5);
  c.Truncate(0);
  b.Truncate(0);
  a.Truncate(0);
  EXPECT_EQ(pool.available(), 1);  // both ends of the copy are waiting for it
  EXPECT_EQ(pool.TakeCopies().size(), 1u);
  EXPECT_EQ(pool.available(), 3);
}

TEST(BlockTableTest, WhatCannotBeGivenChangesNothing) {
  PagePool pool({4, 16});
  BlockTable a(&pool);
  ASSERT_TRUE(a.Append(20).ok());
  BlockTable b = a.Fork();
  ASSERT_TRUE(b.PublishPrefix(std::vector{Key(0)}) == 1);
  const PagePoolStats before = pool.Stats();
  EXPECT_EQ(b.Append(2 * 16).code(), absl::StatusCode::kResourceExhausted);  // 2 and a copy
  EXPECT_EQ(b.Append(-1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(b.Append(BlockTable::kMaxTokens - 19).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool.Stats().held, before.held);
  EXPECT_EQ(pool.Stats().copies, before.copies);
  EXPECT_EQ(b.tokens(), 20);
  ASSERT_TRUE(b.Append(16).ok());
  EXPECT_EQ(pool.available(), 0);
}

TEST(BlockTableTest, APublishedPageIsNeverWritten) {
  PagePool pool({10, 16});
  BlockTable a(&pool);
  ASSERT_TRUE(a.Append(40).ok());
  const std::vector<BlockKey> keys = {Key(1), Key(2), Key(3)};
  EXPECT_EQ(a.PublishPrefix(keys), 2);
  EXPECT_EQ(a.PublishPrefix(keys), 0);
  const PageId second = a.pages()[1];
  a.Truncate(20);
  ASSERT_TRUE(a.Append(1).ok());
  EXPECT_NE(a.pages()[1], second);
  EXPECT_EQ(pool.TakeCopies().size(), 1u);
  BlockTable b(&pool);
  EXPECT_EQ(b.AdoptPrefix(keys), 32);
  EXPECT_EQ(b.pages()[1], second);
  EXPECT_EQ(b.pages()[0], a.pages()[0]);
}

TEST(BlockTableTest, FragmentationCountsASharedTokenOnce) {
  PagePool pool({10, 16});
  BlockTable a(&pool);
  EXPECT_EQ(MeasureFragmentation(pool, {}).Waste(), 0);
  ASSERT_TRUE(a.Append(24).ok());
  BlockTable b = a.Fork();
  ASSERT_TRUE(b.Append(2).ok());
  const BlockTable* const tables[] = {&a, &b};
  const Fragmentation sum = MeasureFragmentation(pool, tables);
  EXPECT_EQ(sum.tokens, 24 + 26);
  EXPECT_EQ(sum.held_slots, 3 * 16);
  EXPECT_EQ(sum.stored_tokens, 16 + 8 + 10);
  EXPECT_DOUBLE_EQ(sum.Waste(), 1 - 34.0 / 48);
}

// Random steps of many sequences against what they should read: a model that keeps each sequence's
// tokens in a vector of its own, and pages as memory whose bytes move only by the queued copies and
// the writes into slots.
class Model {
 public:
  explicit Model(uint64_t seed)
      : random_(seed),
        page_tokens_(1 + random_.Below(5)),
        memory_(kPages * page_tokens_, -1),
        pool_({kPages, static_cast<uint32_t>(page_tokens_)},
              [this](PageId page, const BlockKey& key) { Evicted(page, key); }) {}

  void Step() {
    const uint64_t what = random_.Below(10);
    if (sequences_.empty() || (what == 0 && sequences_.size() < kSequences)) return Start();
    const size_t i = random_.Below(sequences_.size());
    Sequence& sequence = sequences_[i];
    if (what <= 3) {
      Append(sequence);
    } else if (what == 4 && sequences_.size() < kSequences) {
      Flush();
      sequences_.push_back({sequence.table.Fork(), sequence.tokens});
    } else if (what == 5 && !sequence.tokens.empty()) {
      Overwrite(sequence);
    } else if (what == 6) {
      Truncate(sequence, random_.Below(sequence.tokens.size() + 1));
    } else if (what == 7) {
      Flush();
      Publish(sequence);
    } else if (what == 8) {
      Flush();
    } else {
      Truncate(sequence, 0);
      sequences_.erase(sequences_.begin() + i);
    }
  }

  void Check() {
    Flush();
    std::map<PageId, int64_t> holders;
    for (const Sequence& sequence : sequences_) {
      ASSERT_EQ(sequence.table.tokens(), static_cast<int64_t>(sequence.tokens.size()));
      for (size_t t = 0; t < sequence.tokens.size(); ++t) {
        ASSERT_EQ(memory_[sequence.table.Slot(t)], sequence.tokens[t]);
      }
      for (const PageId page : sequence.table.pages()) ++holders[page];
    }
    int64_t shared = 0, references = 0;
    for (PageId page = 0; page < kPages; ++page) {
      ASSERT_EQ(pool_.references(page), holders[page]);
      shared += holders[page] > 1;
      references += holders[page];
      if (pool_.references(page) == 0) holders.erase(page);
    }
    const PagePoolStats stats = pool_.Stats();
    ASSERT_EQ(stats.held, static_cast<int64_t>(holders.size()));
    ASSERT_EQ(stats.shared, shared);
    ASSERT_EQ(stats.references, references);
    int64_t cached = 0;
    for (const auto& [key, content] : published_) cached += !holders.contains(content.page);
    ASSERT_EQ(stats.cached, cached);
    ASSERT_EQ(stats.free, kPages - stats.held - cached);
    ASSERT_EQ(stats.evictions, evictions_);
  }
  uint64_t evictions() const { return evictions_; }
  uint64_t copies() const { return copies_; }
  uint64_t refused() const { return refused_; }
  uint64_t adopted() const { return adopted_; }

 private:
  static constexpr int64_t kPages = 24;
  static constexpr size_t kSequences = 8;
  struct Sequence {
    BlockTable table;
    std::vector<int64_t> tokens;
  };
  struct Published {
    PageId page;
    std::vector<int64_t> prefix;
  };

  // A prefix's key is its tokens: a number for each prefix met.
  uint64_t Name(const std::vector<int64_t>& prefix) {
    return names_.emplace(prefix, names_.size()).first->second;
  }
  std::vector<BlockKey> Keys(const std::vector<int64_t>& tokens) {
    std::vector<BlockKey> keys;
    for (size_t end = page_tokens_; end <= tokens.size(); end += page_tokens_)
      keys.push_back(Key(Name({tokens.begin(), tokens.begin() + end})));
    return keys;
  }

  // What a step puts on the stream: copies, all from what was, then its writes.
  void Flush() {
    const std::vector<int64_t> before = memory_;
    for (const PageCopy& copy : pool_.TakeCopies()) {
      for (int64_t i = 0; i < page_tokens_; ++i)
        memory_[copy.to * page_tokens_ + i] = before[copy.from * page_tokens_ + i];
      ++copies_;
    }
    for (const auto& [slot, token] : writes_) memory_[slot] = token;
    writes_.clear();
  }
  void Write(Sequence& sequence, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      sequence.tokens[t] = random_.Below(3);  // few, so that prefixes meet
      writes_.push_back({sequence.table.Slot(t), sequence.tokens[t]});
    }
  }

  // Tokens that are taken back before the step wrote them are not written.
  void Truncate(Sequence& sequence, int64_t kept) {
    std::set<int64_t> slots;
    for (int64_t t = kept; t < sequence.table.tokens(); ++t) slots.insert(sequence.table.Slot(t));
    std::erase_if(writes_, [&](const auto& write) { return slots.contains(write.first); });
    sequence.table.Truncate(kept);
    sequence.tokens.resize(kept);
  }
  void Start() {
    Sequence sequence{BlockTable(&pool_), {}};
    if (!published_.empty()) {
      auto known = published_.begin();
      std::advance(known, random_.Below(published_.size()));
      std::vector<int64_t> tokens = known->second.prefix;
      tokens.resize(tokens.size() + random_.Below(3) * page_tokens_, 1);
      const std::vector<BlockKey> keys = Keys(tokens);
      size_t expected = 0;
      while (expected < keys.size() && published_.contains(keys[expected].Word(0))) ++expected;
      ASSERT_EQ(sequence.table.AdoptPrefix(keys), static_cast<int64_t>(expected) * page_tokens_);
      tokens.resize(expected * page_tokens_);
      sequence.tokens = tokens;
      adopted_ += expected;
    }
    sequences_.push_back(std::move(sequence));
  }
  void Append(Sequence& sequence) {
    const int64_t count = random_.Below(3 * page_tokens_);
    const int64_t old = sequence.table.tokens();
    const absl::Status grown = sequence.table.Append(count);
    if (!grown.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(grown)) << grown;
      ASSERT_EQ(sequence.table.tokens(), old);
      ++refused_;
      return;
    }
    sequence.tokens.resize(old + count);
    Write(sequence, old, old + count);
  }
  void Overwrite(Sequence& sequence) {
    const int64_t begin = random_.Below(sequence.tokens.size());
    const int64_t end = begin + 1 + random_.Below(sequence.tokens.size() - begin);
    const absl::Status ready = sequence.table.PrepareWrite(begin, end);
    if (!ready.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(ready)) << ready;
      ++refused_;
      return;
    }
    Write(sequence, begin, end);
  }
  void Publish(Sequence& sequence) {
    const std::vector<BlockKey> keys = Keys(sequence.tokens);
    std::set<PageId> named;
    for (const auto& [key, content] : published_) named.insert(content.page);
    int64_t expected = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const PageId page = sequence.table.pages()[i];
      if (published_.contains(keys[i].Word(0)) || named.contains(page)) continue;
      const auto end = sequence.tokens.begin() + (i + 1) * page_tokens_;
      published_[keys[i].Word(0)] = {page, {sequence.tokens.begin(), end}};
      named.insert(page);
      ++expected;
    }
    ASSERT_EQ(sequence.table.PublishPrefix(keys), expected);
  }
  void Evicted(PageId page, const BlockKey& key) {
    const auto found = published_.find(key.Word(0));
    ASSERT_TRUE(found != published_.end() && found->second.page == page);
    // The hook comes before the page is anybody else's: its bytes are still the prefix's end.
    const std::vector<int64_t>& prefix = found->second.prefix;
    for (int64_t i = 0; i < page_tokens_; ++i)
      EXPECT_EQ(memory_[page * page_tokens_ + i], prefix[prefix.size() - page_tokens_ + i]);
    published_.erase(found);
    ++evictions_;
  }

  SeededRandom random_;
  const int64_t page_tokens_;
  std::vector<int64_t> memory_;
  std::vector<std::pair<int64_t, int64_t>> writes_;
  std::map<std::vector<int64_t>, uint64_t> names_;
  std::map<uint64_t, Published> published_;
  uint64_t evictions_ = 0, copies_ = 0, refused_ = 0, adopted_ = 0;
  PagePool pool_;
  std::vector<Sequence> sequences_;
};

TEST(BlockTableTest, RandomStepsReadWhatTheModelReads) {
  uint64_t evictions = 0, copies = 0, refused = 0, adopted = 0;
  for (int run = 0; run < 20; ++run) {
    Model model(1000 + run);
    for (int step = 0; step < 2000; ++step) {
      model.Step();
      if (step % 7 == 0) model.Check();
      if (HasFatalFailure() || HasNonfatalFailure()) FAIL() << "run " << run << " step " << step;
    }
    evictions += model.evictions(), copies += model.copies();
    refused += model.refused(), adopted += model.adopted();
  }
  EXPECT_GT(evictions, 100u);
  EXPECT_GT(copies, 500u);
  EXPECT_GT(refused, 100u);
  EXPECT_GT(adopted, 100u);
}

}  // namespace
}  // namespace kvarve
