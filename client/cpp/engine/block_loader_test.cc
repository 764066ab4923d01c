#include "client/cpp/engine/block_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "client/cpp/engine/pages_testing.h"
#include "storage/base/abseil.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBlockBytes = 512;

// Opens and closes once or more; a test holds a loader's thread at it.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    MutexLock lock(&mutex_);
    ++arrived_;
    changed_.notify_all();
    while (!open_) changed_.wait(mutex_);
  }
  void AwaitArrivals(int n) {
    MutexLock lock(&mutex_);
    while (arrived_ < n) changed_.wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ = false;
  int arrived_ = 0;
};

// A store of blocks by key. `on_verify` runs for each block and says whether it is whole.
struct Store {
  std::map<uint64_t, std::vector<std::byte>> blocks;
  std::function<bool(uint64_t key)> on_verify = [](uint64_t) { return true; };
  std::atomic<int> opened{0}, held{0}, verified{0};
  uint64_t block_bytes = kBlockBytes;
  size_t room = 1000;  // blocks that one Open gives
  HostPath path = HostPath::kHost;
};

class StoreSource final : public BlockSource {
 public:
  explicit StoreSource(Store* store) : store_(store) {}
  absl::StatusOr<OpenBlocks> Open(ClientNamespace ns, std::span<const BlockKey> keys,
                                  const std::optional<GrantSet>& grants,
                                  uint64_t request_id) override {
    ++store_->opened;
    if (ns != 1) return absl::UnavailableError("no daemon");
    OpenBlocks open;
    open.block_bytes = store_->block_bytes;
    open.path = store_->path;
    for (const BlockKey& key : keys) {
      if ((open.is_cut = open.blocks.size() == store_->room)) break;
      const auto found = store_->blocks.find(key.Word(0));
      if (found == store_->blocks.end()) break;
      open.blocks.push_back(found->second.data());
      open.checksums.push_back(key.Word(0));
    }
    ++store_->held;
    open.hold = std::shared_ptr<void>(nullptr, [store = store_](void*) { --store->held; });
    return open;
  }
  bool Verify(ClientNamespace, const BlockKey& key, const std::byte* block,
              uint64_t checksum) override {
    ++store_->verified;
    EXPECT_EQ(checksum, key.Word(0));
    EXPECT_EQ(block, store_->blocks.at(key.Word(0)).data());
    return store_->on_verify(key.Word(0));
  }

 private:
  Store* const store_;
};

class BlockLoaderTest : public ::testing::Test {
 protected:
  void Start(int threads, bool verify = true) {
    auto created = BlockLoader::Create(std::make_unique<StoreSource>(&store_), {threads, verify});
    ASSERT_TRUE(created.ok()) << created.status();
    loader_ = *std::move(created);
  }
  // A load of `blocks` blocks, the keys and pages counted up from those given.
  LoadJob Job(uint64_t id, size_t blocks, uint64_t first_key = 0, int64_t first_page = 0) {
    LoadJob job;
    job.id = id;
    job.ns = 1;
    job.pages = pages_.mover;
    for (size_t i = 0; i < blocks; ++i) {
      job.keys.push_back(KeyOf(first_key + i));
      job.page_ids.push_back(first_page + 2 * i);
      job.page_ids.push_back(first_page + 2 * i + 1);
    }
    return job;
  }
  std::vector<LoadResult> Await(size_t n) {
    std::vector<LoadResult> results;
    while (results.size() < n) {
      pollfd ready = {loader_->event_fd(), POLLIN, 0};
      EXPECT_EQ(::poll(&ready, 1, 30'000), 1);
      for (LoadResult& result : loader_->Poll()) results.push_back(std::move(result));
    }
    return results;
  }
  bool Readable() {
    pollfd ready = {loader_->event_fd(), POLLIN, 0};
    return ::poll(&ready, 1, 0) == 1;
  }
  void Fill(uint64_t keys) {
    for (uint64_t key = 0; key < keys; ++key)
      store_.blocks[key] = RandomBytes(kBlockBytes, random_);
  }

  const uint64_t seed_ = 31;
  std::mt19937_64 random_{seed_};
  TestPages pages_;
  Store store_;
  std::unique_ptr<BlockLoader> loader_;
};

TEST_F(BlockLoaderTest, WritesTheTokensAskedForAndNoOtherByte) {
  Fill(20);
  Start(3);
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed_ << " round " << round);
    const size_t blocks = 1 + random_() % 6;
    LoadJob job = Job(round, blocks, random_() % 14);
    std::vector<int64_t> ids(TestPages::kPages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random_);
    job.page_ids.assign(ids.begin(), ids.begin() + 2 * blocks);
    job.first_token = random_() % (8 * blocks + 1);
    if (round % 2 == 0) job.end_token = job.first_token + random_() % (8 * blocks + 8);
    if (round % 3 == 0) {
      job.grants = GrantSet{};
      job.grants->items.resize(blocks);
    }

    for (std::byte& byte : pages_.memory) byte = static_cast<std::byte>(random_());
    std::vector<std::byte> expected = pages_.memory;
    uint64_t bytes = 0;
    const auto end = std::min<uint64_t>(job.end_token, 8 * blocks);
    for (size_t i = 0; i < blocks; ++i) {
      auto inside = [&](uint64_t token) {
        return static_cast<uint32_t>(std::clamp<int64_t>(token - 8 * i, 0, 8));
      };
      const uint32_t from = job.first_token < 8 * i ? 0 : inside(job.first_token);
      const uint32_t to = end < 8 * i ? 0 : inside(end);
      const auto at = pages_.Bytes(std::span(job.page_ids).subspan(2 * i, 2), from, to);
      for (size_t b = 0; b < at.size(); ++b) {
        if (at[b] == nullptr) continue;
        expected[at[b] - pages_.memory.data()] = store_.blocks[job.keys[i].Word(0)][b];
        ++bytes;
      }
    }
    ASSERT_TRUE(loader_->Submit(job).ok());
    const std::vector<LoadResult> results = Await(1);
    ASSERT_EQ(results.size(), 1u);
    ASSERT_TRUE(results[0].status.ok()) << results[0].status;
    EXPECT_EQ(results[0].id, static_cast<uint64_t>(round));
    EXPECT_EQ(results[0].blocks, blocks);
    EXPECT_EQ(results[0].bytes, bytes);
    ASSERT_TRUE(pages_.memory == expected);
    EXPECT_FALSE(Readable());
  }
  EXPECT_EQ(store_.held, 0);
}

TEST_F(BlockLoaderTest, ABadBlockFailsTheJobBeforeItIsWritten) {
  Fill(4);
  store_.on_verify = [](uint64_t key) { return key != 2; };
  Start(1);
  const std::vector<std::byte> before = pages_.memory;
  ASSERT_TRUE(loader_->Submit(Job(7, 4)).ok());
  const LoadResult result = Await(1)[0];
  EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(ToStd(result.status.message()), HasSubstr("block 2 of 4"));
  EXPECT_EQ(result.blocks, 2u);
  for (const std::byte* byte : pages_.Bytes(std::vector<int64_t>{4, 5}, 0, 8))
    EXPECT_EQ(*byte, before[0]);
  for (const std::byte* byte : pages_.Bytes(std::vector<int64_t>{6, 7}, 0, 8))
    EXPECT_EQ(*byte, before[0]);
  EXPECT_EQ(store_.held, 0);
}

// Staging that takes fewer blocks than the job has: piece by piece, one held at a time.
TEST_F(BlockLoaderTest, BlocksComeInPiecesWhereRoomIsShort) {
  Fill(7);
  store_.room = 3;
  store_.on_verify = [this](uint64_t) { return store_.held == 1; };
  Start(1);
  LoadJob job = Job(1, 7);
  job.grants = GrantSet{};
  job.grants->items.resize(7);
  ASSERT_TRUE(loader_->Submit(job).ok());
  const LoadResult result = Await(1)[0];
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.blocks, 7u);
  EXPECT_EQ(store_.opened, 3);
  EXPECT_EQ(store_.held, 0);
  for (int64_t i = 0; i < 7; ++i) {
    const auto at = pages_.Bytes(std::vector<int64_t>{2 * i, 2 * i + 1}, 0, 8);
    for (size_t b = 0; b < at.size(); ++b) ASSERT_EQ(*at[b], store_.blocks[i][b]);
  }
  // The store has 7 blocks: the third piece of this one ends too early.
  ASSERT_TRUE(loader_->Submit(Job(2, 8)).ok());
  EXPECT_EQ(Await(1)[0].status.code(), absl::StatusCode::kNotFound);
}

// Memory that others may write is checked behind the copy: what was copied is what was checked.
TEST_F(BlockLoaderTest, WritableMemoryIsVerifiedAfterTheCopy) {
  Fill(3);
  store_.path = HostPath::kWritable;
  store_.on_verify = [this](uint64_t key) {
    const auto at = pages_.Bytes(
        std::vector<int64_t>{2 * static_cast<int64_t>(key), 2 * static_cast<int64_t>(key) + 1}, 0,
        8);
    for (size_t b = 0; b < at.size(); ++b) EXPECT_EQ(*at[b], store_.blocks[key][b]);
    return key != 2;  // somebody wrote it
  };
  Start(1);
  ASSERT_TRUE(loader_->Submit(Job(1, 2)).ok());
  EXPECT_TRUE(Await(1)[0].status.ok());
  ASSERT_TRUE(loader_->Submit(Job(2, 3)).ok());
  EXPECT_EQ(Await(1)[0].status.code(), absl::StatusCode::kDataLoss);
}

TEST_F(BlockLoaderTest, VerifiesOnlyWhatItWritesAndNothingWhenToldSo) {
  Fill(4);
  Start(1);
  LoadJob job = Job(1, 4);
  job.first_token = 17;
  job.page_ids[0] = job.page_ids[1] = job.page_ids[2] = job.page_ids[3] = -1;
  ASSERT_TRUE(loader_->Submit(job).ok());
  EXPECT_TRUE(Await(1)[0].status.ok());
  EXPECT_EQ(store_.verified, 2);
  Start(1, false);
  ASSERT_TRUE(loader_->Submit(Job(1, 4)).ok());
  EXPECT_TRUE(Await(1)[0].status.ok());
  EXPECT_EQ(store_.verified, 2);
}

TEST_F(BlockLoaderTest, WhatIsWrongWithAJobIsItsResultAndMovesNothing) {
  Fill(3);
  Start(2);
  const std::vector<std::byte> before = pages_.memory;
  auto fails = [&](LoadJob job, absl::StatusCode code, const char* text) {
    EXPECT_TRUE(loader_->Submit(std::move(job)).ok());
    const LoadResult result = Await(1)[0];
    EXPECT_EQ(result.status.code(), code) << text;
    EXPECT_THAT(ToStd(result.status.message()), HasSubstr(text));
    EXPECT_EQ(result.blocks, 0u);
    EXPECT_TRUE(pages_.memory == before);
    EXPECT_EQ(store_.held, 0);
  };
  LoadJob job = Job(1, 3);
  job.pages = nullptr;
  fails(job, absl::StatusCode::kInvalidArgument, "without pages");
  job = Job(1, 3);
  job.page_ids.pop_back();
  fails(job, absl::StatusCode::kInvalidArgument, "5 page ids for 3 blocks of 2 pages");
  job = Job(1, 3);
  job.page_ids[5] = 64;
  fails(job, absl::StatusCode::kInvalidArgument, "id 64 of 64 pages");
  job = Job(1, 3);
  job.grants = GrantSet{};
  fails(job, absl::StatusCode::kInvalidArgument, "0 grants for 3 blocks");
  job = Job(1, 3);
  job.first_token = 5;
  job.end_token = 4;
  fails(job, absl::StatusCode::kInvalidArgument, "[5, 4)");
  EXPECT_EQ(store_.opened, 0) << "checked before a lease is taken";
  fails(Job(1, 4), absl::StatusCode::kNotFound, "only 3 of 4 blocks");
  job = Job(1, 3);
  job.ns = 2;
  fails(job, absl::StatusCode::kUnavailable, "no daemon");
  store_.block_bytes = 511;
  fails(Job(1, 3), absl::StatusCode::kInvalidArgument, "blocks of 511 bytes");
}

TEST_F(BlockLoaderTest, CancelEndsQueuedJobsAtOnceAndRunningOnesAtTheNextBlock) {
  Fill(4);
  Gate gate;
  store_.on_verify = [&](uint64_t key) {
    if (key == 1) gate.Pass();
    return true;
  };
  Start(1);
  const std::byte before = pages_.memory[0];
  ASSERT_TRUE(loader_->Submit(Job(1, 3)).ok());
  gate.AwaitArrivals(1);
  ASSERT_TRUE(loader_->Submit(Job(2, 1, 0, 20)).ok());
  EXPECT_TRUE(loader_->Cancel(2));
  LoadResult result = Await(1)[0];
  EXPECT_EQ(result.id, 2u);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(loader_->Cancel(2));
  EXPECT_FALSE(loader_->Cancel(99));

  EXPECT_TRUE(loader_->Cancel(1));
  EXPECT_TRUE(loader_->Cancel(1));
  EXPECT_TRUE(loader_->Poll().empty()) << "it may still write";
  gate.Open();
  result = Await(1)[0];
  EXPECT_EQ(result.id, 1u);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(result.blocks, 1u);
  for (const std::byte* byte : pages_.Bytes(std::vector<int64_t>{2, 3}, 0, 8))
    EXPECT_EQ(*byte, before);
  for (const std::byte* byte : pages_.Bytes(std::vector<int64_t>{20, 21}, 0, 8))
    EXPECT_EQ(*byte, before);
}

// The block that a cancelled job was at is its last one: even then it does not end well.
TEST_F(BlockLoaderTest, ACancelThatFoundTheJobDecides) {
  Fill(1);
  Gate gate;
  store_.on_verify = [&](uint64_t) {
    gate.Pass();
    return false;
  };
  Start(1);
  ASSERT_TRUE(loader_->Submit(Job(1, 1)).ok());
  gate.AwaitArrivals(1);
  EXPECT_TRUE(loader_->Cancel(1));
  gate.Open();
  EXPECT_EQ(Await(1)[0].status.code(), absl::StatusCode::kCancelled);
}

TEST_F(BlockLoaderTest, StopEndsEveryJobOnce) {
  Fill(4);
  Gate gate;
  store_.on_verify = [&](uint64_t) {
    gate.Pass();
    return true;
  };
  Start(2);
  for (uint64_t id = 0; id < 10; ++id) ASSERT_TRUE(loader_->Submit(Job(id, 4)).ok());
  gate.AwaitArrivals(2);
  std::thread stopping([&] { loader_->Stop(); });
  EXPECT_EQ(Await(8).size(), 8u) << "those that did not run yet";
  gate.Open();
  stopping.join();
  std::set<uint64_t> running;
  for (const LoadResult& result : loader_->Poll()) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kCancelled);
    running.insert(result.id);
  }
  EXPECT_EQ(running.size(), 2u);
  EXPECT_TRUE(loader_->Poll().empty());
  EXPECT_EQ(loader_->Submit(Job(11, 1)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_.held, 0);
}

TEST_F(BlockLoaderTest, LimitsOfWhatIsTaken) {
  Fill(1);
  Gate gate;
  store_.on_verify = [&](uint64_t) {
    gate.Pass();
    return true;
  };
  EXPECT_EQ(BlockLoader::Create(std::make_unique<StoreSource>(&store_), {0, true}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BlockLoader::Create(std::make_unique<StoreSource>(&store_), {17, true}).status().code(),
            absl::StatusCode::kInvalidArgument);
  Start(1);
  for (uint64_t id = 0; id < BlockLoader::kMaxJobs; ++id)
    ASSERT_TRUE(loader_->Submit(Job(id, 1)).ok());
  EXPECT_EQ(loader_->Submit(Job(BlockLoader::kMaxJobs, 1)).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(loader_->Cancel(5));
  EXPECT_EQ(loader_->Submit(Job(5, 1)).code(), absl::StatusCode::kResourceExhausted)
      << "not polled yet";
  EXPECT_EQ(Await(1).size(), 1u);
  EXPECT_EQ(loader_->Submit(Job(3, 1)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(loader_->Submit(Job(5, 1)).ok());
  gate.Open();
  EXPECT_EQ(Await(BlockLoader::kMaxJobs).size(), BlockLoader::kMaxJobs);
  EXPECT_FALSE(Readable());
}

// Submitters, cancellers and a poller at once, each load with pages of its own: every id ends once,
// a load that ended well is whole, and after its end no page changes.
TEST_F(BlockLoaderTest, ManyThreads) {
  Fill(8);
  Start(4);
  constexpr uint64_t kThreads = 3, kJobs = 200;
  std::vector<TestPages> engines(kThreads * kJobs);
  std::vector<uint64_t> first_keys(kThreads * kJobs);
  for (uint64_t& key : first_keys) key = random_() % 8;  // from 7 on, the second block is missing
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (uint64_t i = 0; i < kJobs; ++i) {
        const uint64_t id = t * kJobs + i;
        LoadJob job = Job(id, 2, first_keys[id]);
        job.pages = engines[id].mover;
        EXPECT_TRUE(loader_->Submit(std::move(job)).ok());
        if (random() % 3 == 0) loader_->Cancel(t * kJobs + random() % (i + 1));
      }
    });
  }
  std::map<uint64_t, std::vector<std::byte>> at_end;
  int loaded = 0;
  while (at_end.size() < kThreads * kJobs) {
    for (const LoadResult& result : Await(1)) {
      EXPECT_TRUE(at_end.emplace(result.id, engines[result.id].memory).second)
          << result.id << " ended twice";
      if (!result.status.ok()) continue;
      ++loaded;
      for (int64_t block = 0; block < 2; ++block) {
        const auto bytes =
            engines[result.id].Bytes(std::vector<int64_t>{2 * block, 2 * block + 1}, 0, 8);
        for (size_t i = 0; i < bytes.size(); ++i) {
          ASSERT_EQ(*bytes[i], store_.blocks[first_keys[result.id] + block][i]);
        }
      }
    }
  }
  for (std::thread& thread : threads) thread.join();
  loader_->Stop();
  EXPECT_TRUE(loader_->Poll().empty());
  for (const auto& [id, memory] : at_end) EXPECT_TRUE(memory == engines[id].memory) << id;
  EXPECT_GT(loaded, 0);
  EXPECT_EQ(store_.held, 0);
}

}  // namespace
}  // namespace kvarve
