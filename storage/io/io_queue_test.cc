#include "storage/io/io_queue.h"

#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

constexpr uint64_t kMiB = 1 << 20;

IoQueue::Item ItemOf(IoClass io_class, uint64_t bytes, uint64_t name = 0) {
  IoQueue::Item item;
  item.request.io_class = io_class;
  item.request.offset = name;
  item.bytes = bytes;
  return item;
}

IoQueueOptions Narrow() {
  IoQueueOptions options;
  options.inflight_max = 1;
  return options;
}

TEST(IoQueueTest, OneClassIsServedInOrder) {
  IoQueue queue({});
  for (uint64_t i = 0; i < 5; ++i) queue.Push(ItemOf(IoClass::kFlush, kMiB, i));
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(queue.Pop()->request.offset, i);
  EXPECT_FALSE(queue.Pop());
  EXPECT_EQ(queue.inflight(), 5u);
}

TEST(IoQueueTest, ClassesThatWaitShareByTheirWeights) {
  IoQueue queue(Narrow());
  for (int i = 0; i < 1600; ++i) {
    for (int c = 0; c < kIoClasses; ++c) queue.Push(ItemOf(static_cast<IoClass>(c), kMiB));
    if (queue.waiting() > 4000) break;
  }
  std::map<IoClass, int> served;
  for (int i = 0; i < 800; ++i) {
    const auto item = queue.Pop();
    ASSERT_TRUE(item);
    ++served[item->request.io_class];
    queue.Finished(item->request.io_class, item->bytes);
  }
  // 8 : 2 : 4 : 1 : 1 of 800.
  EXPECT_NEAR(served[IoClass::kDemand], 400, 3);
  EXPECT_NEAR(served[IoClass::kPrefetch], 100, 3);
  EXPECT_NEAR(served[IoClass::kFlush], 200, 3);
  EXPECT_NEAR(served[IoClass::kGc], 50, 3);
  EXPECT_NEAR(served[IoClass::kScrub], 50, 3);
}

TEST(IoQueueTest, AnIdleClassComesBackWithoutCredit) {
  IoQueue queue(Narrow());
  const auto serve = [&] {
    const auto item = queue.Pop();
    queue.Finished(item->request.io_class, item->bytes);
    return item->request.io_class;
  };
  for (int i = 0; i < 1000; ++i) queue.Push(ItemOf(IoClass::kFlush, kMiB));
  for (int i = 0; i < 900; ++i) EXPECT_EQ(serve(), IoClass::kFlush);
  for (int i = 0; i < 1000; ++i) queue.Push(ItemOf(IoClass::kScrub, kMiB));
  int scrubs = 0;
  for (int i = 0; i < 50; ++i) scrubs += serve() == IoClass::kScrub ? 1 : 0;
  EXPECT_NEAR(scrubs, 10, 1);  // one in five, not all of them
}

TEST(IoQueueTest, BackgroundBytesNeverFillTheDevice) {
  IoQueueOptions options;
  options.inflight_bytes_max = 16 * kMiB;
  options.class_bytes_max = {16 * kMiB, 8 * kMiB, 12 * kMiB, 4 * kMiB, 2 * kMiB};
  IoQueue queue(options);
  for (int i = 0; i < 20; ++i) queue.Push(ItemOf(IoClass::kGc, kMiB));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(queue.Pop());
  EXPECT_FALSE(queue.Pop());  // 4 MiB of garbage collection are in flight
  queue.Push(ItemOf(IoClass::kDemand, 12 * kMiB));
  EXPECT_EQ(queue.Pop()->request.io_class, IoClass::kDemand);
  queue.Push(ItemOf(IoClass::kDemand, kMiB));
  EXPECT_FALSE(queue.Pop());  // 16 MiB in sum
  queue.Finished(IoClass::kGc, kMiB);
  EXPECT_TRUE(queue.Pop());
  EXPECT_FALSE(queue.Pop());
}

TEST(IoQueueTest, ARequestOverItsCapStillStartsAlone) {
  IoQueue queue({});
  queue.Push(ItemOf(IoClass::kScrub, 64 * kMiB));
  EXPECT_TRUE(queue.Pop());
}

// A naive model: whatever is pushed comes out once, in order within its class, within the caps.
TEST(IoQueueTest, RandomOperationsKeepTheSums) {
  testing::SeededRandom random(7);
  IoQueueOptions options;
  options.waiting_max = 64;
  options.inflight_max = 9;
  IoQueue queue(options);
  std::map<IoClass, std::vector<uint64_t>> waiting;
  std::vector<IoQueue::Item> inflight;
  std::map<IoClass, uint64_t> bytes_of;
  uint64_t name = 0;
  for (int step = 0; step < 50000; ++step) {
    const auto io_class = static_cast<IoClass>(random.Below(kIoClasses));
    if (random.OneIn(2) && !queue.full()) {
      const uint64_t bytes = random.Below(2048) * kIoUnit;
      queue.Push(ItemOf(io_class, bytes, ++name));
      waiting[io_class].push_back(name);
      bytes_of[io_class] += bytes;
    } else if (random.OneIn(2)) {
      auto item = queue.Pop();
      size_t left = 0;
      for (const auto& [of, names] : waiting) left += names.size();
      if (!item) {
        EXPECT_TRUE(left == 0 || !inflight.empty());
        continue;
      }
      std::vector<uint64_t>& names = waiting[item->request.io_class];
      ASSERT_EQ(item->request.offset, names.front());
      names.erase(names.begin());
      inflight.push_back(*std::move(item));
    } else if (!inflight.empty()) {
      const size_t at = random.Below(inflight.size());
      queue.Finished(inflight[at].request.io_class, inflight[at].bytes);
      bytes_of[inflight[at].request.io_class] -= inflight[at].bytes;
      inflight.erase(inflight.begin() + static_cast<ptrdiff_t>(at));
    }
    ASSERT_EQ(queue.inflight(), inflight.size());
    ASSERT_LE(inflight.size(), 9u);
    for (const auto& [of, bytes] : bytes_of) ASSERT_EQ(queue.queued_bytes(of), bytes);
  }
}

}  // namespace
}  // namespace kvarve
