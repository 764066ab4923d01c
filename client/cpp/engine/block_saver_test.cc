#include "client/cpp/engine/block_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <numeric>
#include <thread>

#include "client/cpp/engine/pages_testing.h"
#include "storage/base/abseil.h"

namespace kvarve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum PutOutcome;

constexpr uint64_t kBlockBytes = 512;
constexpr int64_t kMinute = 60'000'000'000;

struct SeenPut {
  ClientNamespace ns;
  std::optional<BlockKey> parent;
  uint32_t first_depth;
  std::vector<BlockKey> keys;
  uint64_t request_id;
  uint32_t recompute_us;
  std::vector<std::byte> bytes;
};

// A daemon: staging of `staging_bytes`, puts answered by `on_put` (all stored when it is empty).
struct Daemon {
  std::atomic<size_t> staging_bytes{1 << 20};
  absl::Status stage_error;  // instead of staging
  std::function<absl::StatusOr<std::vector<PutOutcome>>(const SeenPut&)> on_put;
  Mutex gate;  // whoever holds it keeps puts waiting, and their staging taken
  Mutex mutex;
  std::vector<SeenPut> puts;
};

class DaemonSink final : public BlockSink {
 public:
  explicit DaemonSink(Daemon* daemon) : daemon_(daemon) {}
  absl::StatusOr<StagedBytes> Stage(size_t bytes) override {
    if (!daemon_->stage_error.ok()) return daemon_->stage_error;
    if (bytes > daemon_->staging_bytes) return absl::ResourceExhaustedError("no staging now");
    daemon_->staging_bytes -= bytes;
    auto memory = std::shared_ptr<std::vector<std::byte>>(
        new std::vector<std::byte>(bytes), [daemon = daemon_](std::vector<std::byte>* bytes) {
          daemon->staging_bytes += bytes->size();
          delete bytes;
        });
    return StagedBytes{memory->data(), memory};
  }
  absl::StatusOr<std::vector<PutOutcome>> Put(ClientNamespace ns, const PutChain& chain,
                                              StagedBytes staged) override {
    SeenPut put = {ns,
                   chain.parent,
                   chain.first_depth,
                   {chain.keys.begin(), chain.keys.end()},
                   chain.request_id,
                   chain.recompute_us,
                   {}};
    put.bytes.assign(staged.data, staged.data + chain.keys.size() * kBlockBytes);
    {
      MutexLock lock(&daemon_->mutex);
      daemon_->puts.push_back(put);
    }
    { const MutexLock waits(&daemon_->gate); }
    if (daemon_->on_put) return daemon_->on_put(put);
    return std::vector<PutOutcome>(put.keys.size(), kStored);
  }

 private:
  Daemon* const daemon_;
};

class BlockSaverTest : public ::testing::Test {
 protected:
  BlockSaverTest() : saver_(std::make_unique<BlockSaver>(std::make_unique<DaemonSink>(&daemon_))) {
    for (std::byte& byte : pages_.memory) byte = static_cast<std::byte>(random_());
  }
  ~BlockSaverTest() override {
    saver_.reset();
    EXPECT_EQ(daemon_.staging_bytes, staging_) << "all staging is given back";
  }
  void SetStaging(size_t bytes) { daemon_.staging_bytes = staging_ = bytes; }
  SaveJob Job(uint64_t id, size_t blocks) {
    SaveJob job;
    job.id = id;
    job.ns = 3;
    job.request_id = 77;
    job.recompute_us = 1234;
    job.first_depth = 5;
    job.parent = KeyOf(999);
    job.pages = pages_.mover;
    std::vector<int64_t> ids(TestPages::kPages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random_);
    for (size_t i = 0; i < blocks; ++i) {
      job.keys.push_back(KeyOf(1000 * id + i));
      job.page_ids.insert(job.page_ids.end(), &ids[2 * i % 64], &ids[2 * i % 64] + 2);
    }
    return job;
  }
  std::vector<std::byte> BlockOf(const SaveJob& job, size_t i) {
    std::vector<std::byte> block;
    for (const std::byte* byte : pages_.Bytes(std::span(job.page_ids).subspan(2 * i, 2), 0, 8))
      block.push_back(*byte);
    return block;
  }
  // No put gives staging back meanwhile.
  absl::StatusOr<SaveAnswer> SaveBeforePuts(const SaveJob& job) {
    const MutexLock lock(&daemon_.gate);
    return saver_->Save(job);
  }
  SaveResult Await() {
    pollfd ready = {saver_->event_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&ready, 1, 30'000), 1);
    std::vector<SaveResult> results = saver_->Poll();
    EXPECT_EQ(results.size(), 1u);
    return results.empty() ? SaveResult{} : results[0];
  }

  const uint64_t seed_ = 41;
  std::mt19937_64 random_{seed_};
  TestPages pages_;
  Daemon daemon_;
  size_t staging_ = 1 << 20;
  std::unique_ptr<BlockSaver> saver_;
};

TEST_F(BlockSaverTest, PutsWhatThePagesHeldWhenSaveReturned) {
  for (int round = 1; round <= 100; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed_ << " round " << round);
    const SaveJob job = Job(round, 1 + random_() % 20);
    std::vector<std::byte> expected;
    for (size_t i = 0; i < job.keys.size(); ++i) {
      const std::vector<std::byte> block = BlockOf(job, i);
      expected.insert(expected.end(), block.begin(), block.end());
    }
    const auto answer = saver_->Save(job);
    for (std::byte& byte : pages_.memory)
      byte = static_cast<std::byte>(random_());  // the engine goes on
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->blocks, job.keys.size());
    EXPECT_TRUE(answer->dropped.ok());
    const SaveResult result = Await();
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.id, job.id);
    EXPECT_EQ(result.outcomes, std::vector<PutOutcome>(job.keys.size(), kStored));
    EXPECT_EQ(result.bytes, expected.size());
    EXPECT_EQ(saver_->pending_blocks(), 0u);
    MutexLock lock(&daemon_.mutex);
    ASSERT_EQ(daemon_.puts.size(), 1u);
    const SeenPut& put = daemon_.puts[0];
    EXPECT_TRUE(put.bytes == expected);
    EXPECT_TRUE(put.keys == job.keys);
    EXPECT_TRUE(put.parent == job.parent);
    EXPECT_EQ(put.ns, 3u);
    EXPECT_EQ(put.first_depth, 5u);
    EXPECT_EQ(put.request_id, 77u);
    EXPECT_EQ(put.recompute_us, 1234u);
    daemon_.puts.clear();
  }
}

TEST_F(BlockSaverTest, PiecesContinueTheChain) {
  SetStaging(9 * kBlockBytes);
  const SaveJob job = Job(1, 13);
  const auto answer = saver_->Save(job);
  ASSERT_TRUE(answer.ok());
  EXPECT_GE(answer->blocks, 9u);  // more when the first puts gave staging back in time
  const SaveResult result = Await();
  EXPECT_EQ(result.outcomes.size(), answer->blocks);
  MutexLock lock(&daemon_.mutex);
  size_t block = 0;
  for (const SeenPut& put : daemon_.puts) {
    EXPECT_EQ(put.first_depth, 5 + block);
    EXPECT_TRUE(put.parent == (block == 0 ? *job.parent : job.keys[block - 1]));
    for (size_t i = 0; i < put.keys.size(); ++i, ++block) {
      EXPECT_TRUE(put.keys[i] == job.keys[block]);
      EXPECT_TRUE(std::equal(put.bytes.begin() + i * kBlockBytes,
                             put.bytes.begin() + (i + 1) * kBlockBytes,
                             BlockOf(job, block).begin()));
    }
  }
  EXPECT_EQ(block, answer->blocks);
  EXPECT_GT(daemon_.puts.size(), 1u);
}

TEST_F(BlockSaverTest, WithoutStagingTheSuffixIsDropped) {
  SetStaging(5 * kBlockBytes);
  const auto answer = SaveBeforePuts(Job(1, 9));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->blocks, 5u);  // 9 and then 4 were asked for, then 4, 2, 1 of the rest
  EXPECT_EQ(answer->dropped.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Await().outcomes.size(), 5u);
  SetStaging(kBlockBytes - 1);
  const auto dropped = saver_->Save(Job(2, 3));
  ASSERT_TRUE(dropped.ok());
  EXPECT_EQ(dropped->blocks, 0u);
  EXPECT_EQ(saver_->pending_blocks(), 0u);
  EXPECT_TRUE(saver_->Poll().empty()) << "no block was taken: no result";
}

TEST_F(BlockSaverTest, WithoutADaemonAllIsDroppedAtOnce) {
  daemon_.stage_error = absl::UnavailableError("no daemon at unix:///x");
  const auto answer = saver_->Save(Job(1, 3));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->blocks, 0u);
  EXPECT_EQ(answer->dropped.code(), absl::StatusCode::kUnavailable);
}

TEST_F(BlockSaverTest, AFailedGatherPutsNothing) {
  SetStaging(6 * kBlockBytes);
  SaveJob job = Job(1, 7);  // pieces of 3 and 3: the second one's gather fails
  job.page_ids[7] = TestPages::kPages;
  EXPECT_THAT(ToStd(saver_->Save(job).status().message()), HasSubstr("id 64 of 64 pages"));
  job = Job(1, 3);
  job.page_ids.pop_back();
  EXPECT_THAT(ToStd(saver_->Save(job).status().message()), HasSubstr("5 page ids"));
  job.pages = nullptr;
  EXPECT_THAT(ToStd(saver_->Save(job).status().message()), HasSubstr("without pages"));
  EXPECT_EQ(saver_->pending_blocks(), 0u);
  EXPECT_TRUE(saver_->Drain(kMinute));
  MutexLock lock(&daemon_.mutex);
  EXPECT_TRUE(daemon_.puts.empty());
}

TEST_F(BlockSaverTest, BehindARejectedBlockNothingIsPut) {
  daemon_.on_put = [](const SeenPut& put) {
    std::vector<PutOutcome> outcomes(put.keys.size(), kExists);
    if (put.first_depth == 5) outcomes.back() = kRejectedNoSpace;
    return outcomes;
  };
  SetStaging(6 * kBlockBytes);
  ASSERT_TRUE(SaveBeforePuts(Job(1, 7)).ok());  // pieces of 3, 3 (the seventh finds no staging)
  const SaveResult result = Await();
  EXPECT_TRUE(result.status.ok());
  EXPECT_THAT(result.outcomes, ElementsAre(kExists, kExists, kRejectedNoSpace, kRejectedParent,
                                           kRejectedParent, kRejectedParent));
  MutexLock lock(&daemon_.mutex);
  EXPECT_EQ(daemon_.puts.size(), 1u);
}

TEST_F(BlockSaverTest, AnErrorOfAPutEndsTheSaveWithIt) {
  daemon_.on_put = [](const SeenPut&) { return absl::DeadlineExceededError("put took 5s"); };
  SetStaging(6 * kBlockBytes);
  ASSERT_TRUE(saver_->Save(Job(1, 7)).ok());
  const SaveResult result = Await();
  EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(result.outcomes.empty());
  {
    MutexLock lock(&daemon_.mutex);
    EXPECT_EQ(daemon_.puts.size(), 1u) << "the rest would have no parent";
  }
  daemon_.on_put = [](const SeenPut&) { return std::vector<PutOutcome>(100, kStored); };
  ASSERT_TRUE(saver_->Save(Job(2, 1)).ok());
  EXPECT_EQ(Await().status.code(), absl::StatusCode::kInternal);
}

TEST_F(BlockSaverTest, CancelDrainAndStop) {
  Mutex mutex;
  CondVar changed;
  bool open = false;
  int arrived = 0;
  daemon_.on_put = [&](const SeenPut& put) {
    MutexLock lock(&mutex);
    ++arrived;
    changed.notify_all();
    while (!open) changed.wait(mutex);
    return std::vector<PutOutcome>(put.keys.size(), kStored);
  };
  auto await_arrivals = [&](int n) {
    MutexLock lock(&mutex);
    while (arrived < n) changed.wait(mutex);
  };
  SetStaging(6 * kBlockBytes);
  ASSERT_TRUE(saver_->Save(Job(1, 7)).ok());  // pieces of 3 and 3
  await_arrivals(1);
  EXPECT_EQ(saver_->pending_blocks(), 6u);
  EXPECT_FALSE(saver_->Drain(0));
  EXPECT_EQ(saver_->CancelQueued(), 3u);
  EXPECT_EQ(saver_->pending_blocks(), 3u);
  EXPECT_TRUE(saver_->Poll().empty());
  {
    MutexLock lock(&mutex);
    open = true;
    changed.notify_all();
  }
  EXPECT_TRUE(saver_->Drain(kMinute));
  SaveResult result = Await();
  EXPECT_EQ(result.status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(result.outcomes, ElementsAre(kStored, kStored, kStored)) << "what was out is told";

  {
    MutexLock lock(&mutex);
    open = false;
  }
  ASSERT_TRUE(saver_->Save(Job(2, 3)).ok());
  ASSERT_TRUE(saver_->Save(Job(3, 2)).ok());
  await_arrivals(2);
  std::thread stopping([&] { saver_->Stop(); });
  result = Await();
  EXPECT_EQ(result.id, 3u);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kCancelled);
  {
    MutexLock lock(&mutex);
    open = true;
    changed.notify_all();
  }
  stopping.join();
  result = Await();
  EXPECT_EQ(result.id, 2u);
  EXPECT_TRUE(result.status.ok());
  const auto late = saver_->Save(Job(4, 1));
  ASSERT_TRUE(late.ok());
  EXPECT_EQ(late->blocks, 0u);
  EXPECT_EQ(late->dropped.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(BlockSaverTest, LimitOfWhatMayWait) {
  for (uint64_t id = 0; id < BlockSaver::kMaxSaves; ++id) {
    auto answer = saver_->Save(Job(id, 1));
    ASSERT_TRUE(answer.ok());
    ASSERT_EQ(answer->blocks, 1u) << answer->dropped;
    ASSERT_TRUE(saver_->Drain(kMinute));
  }
  EXPECT_EQ(saver_->Save(Job(1, 1))->dropped.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(saver_->Poll().size(), BlockSaver::kMaxSaves);
  EXPECT_EQ(saver_->Save(Job(1, 1))->blocks, 1u);
}

}  // namespace
}  // namespace kvarve
