// One suite over every device: io_uring, the thread pool (direct and buffered), the simulated disk.
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"
#include "storage/io/io_wait.h"
#include "storage/io/open_device.h"
#include "storage/io/uring_device.h"
#include "storage/testing/seeded_random.h"
#include "storage/testing/sim_disk.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBytes = 4 << 20;

class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    KV_CHECK(::posix_memalign(&memory, 4096, bytes) == 0);
    std::memset(memory, 0, bytes);
    data_ = static_cast<std::byte*>(memory);
  }
  ~Memory() { ::free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return data_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }
  void Fill(uint64_t seed) {
    for (size_t i = 0; i < bytes_; i += 8) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(data_ + i, &seed, 8);
    }
  }

 private:
  const size_t bytes_;
  std::byte* data_;
};

struct Kind {
  std::string name;
  IoBackend backend;
  bool direct = true;
};

class DeviceConformanceTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam().backend == IoBackend::kUring && !UringWorks().ok()) GTEST_SKIP() << UringWorks();
    path_ = ::testing::TempDir() + "conformance_XXXXXX";
    const int fd = ::mkstemp(path_.data());
    ASSERT_GE(fd, 0);
    ASSERT_EQ(::ftruncate(fd, kBytes), 0);
    ::close(fd);
    device_ = Open({});
  }
  void TearDown() override {
    device_.reset();
    std::filesystem::remove(path_);
  }

  std::unique_ptr<Device> Open(const IoQueueOptions& queue) const {
    if (GetParam().backend == IoBackend::kSimulated)
      return std::make_unique<testing::SimDisk>(kBytes, 1);
    DeviceOptions options;
    options.queue = queue;
    options.direct = GetParam().direct;
    options.backend =
        GetParam().backend == IoBackend::kUring ? WantedBackend::kUring : WantedBackend::kPosix;
    auto device = OpenDevice(path_, options);
    KV_CHECK(device.ok());
    return *std::move(device);
  }
  bool simulated() const { return GetParam().backend == IoBackend::kSimulated; }

  std::string path_;
  std::unique_ptr<Device> device_;
};

TEST_P(DeviceConformanceTest, SaysWhatItIs) {
  EXPECT_EQ(device_->info().bytes, kBytes);
  EXPECT_EQ(device_->info().backend, GetParam().backend);
  EXPECT_FALSE(!GetParam().direct && device_->info().direct);
}

TEST_P(DeviceConformanceTest, ReadsWhatWasWritten) {
  Memory out(3 * 4096), in(3 * 4096);
  out.Fill(1);
  ASSERT_TRUE(WriteNow(device_.get(), IoClass::kFlush, 8192, out.span()).ok());
  ASSERT_TRUE(SyncNow(device_.get(), IoClass::kFlush).ok());
  ASSERT_TRUE(ReadNow(device_.get(), IoClass::kDemand, 8192, in.span()).ok());
  EXPECT_EQ(std::memcmp(in.data(), out.data(), 3 * 4096), 0);
  const IoStats stats = device_->Stats();
  const auto& writes = stats.of[static_cast<int>(IoClass::kFlush)][static_cast<int>(IoOp::kWrite)];
  EXPECT_EQ(writes.requests, 1u);
  EXPECT_EQ(writes.bytes, 3 * 4096u);
  EXPECT_EQ(writes.errors, 0u);
}

TEST_P(DeviceConformanceTest, BuffersAreGatheredAndScatteredInOrder) {
  Memory out(5 * 4096), in(5 * 4096);
  out.Fill(2);
  const auto page = [](const Memory& memory, int i) { return memory.data() + i * 4096; };
  IoWait wait(device_.get());
  wait.Submit({IoOp::kWrite,
               IoClass::kFlush,
               4096,
               {{page(out, 3), 8192}, {page(out, 0), 4096}, {page(out, 1), 8192}},
               nullptr});
  ASSERT_TRUE(wait.Wait().ok());
  wait.Submit({IoOp::kRead,
               IoClass::kDemand,
               4096,
               {{page(in, 3), 8192}, {page(in, 0), 4096}, {page(in, 1), 8192}},
               nullptr});
  ASSERT_TRUE(wait.Wait().ok());
  EXPECT_EQ(std::memcmp(in.data(), out.data(), 5 * 4096), 0);
  ASSERT_TRUE(ReadNow(device_.get(), IoClass::kDemand, 4096, in.span()).ok());
  EXPECT_EQ(std::memcmp(in.data(), page(out, 3), 8192), 0);
  EXPECT_EQ(std::memcmp(in.data() + 8192, page(out, 0), 3 * 4096), 0);
}

TEST_P(DeviceConformanceTest, RefusesBadRequestsAndNamesTheFile) {
  Memory memory(8192);
  const auto refusal = [&](IoRequest request) {
    absl::Status status;
    int calls = 0;
    request.done = [&](const IoResult& result) {
      ++calls;
      status = result.status;
    };
    device_->Submit(std::move(request));
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(ToStd(status.message())), HasSubstr(device_->info().path));
    return std::string(ToStd(status.message()));
  };
  std::byte* data = memory.data();
  const auto read = [](uint64_t offset, std::vector<iovec> buffers) {
    return IoRequest{IoOp::kRead, IoClass::kDemand, offset, std::move(buffers), nullptr};
  };
  EXPECT_THAT(refusal(read(512, {{data, 4096}})), HasSubstr("multiples of 4096"));
  EXPECT_THAT(refusal(read(0, {{data + 512, 4096}})), HasSubstr("aligned"));
  EXPECT_THAT(refusal(read(0, {{data, 512}})), HasSubstr("pages"));
  EXPECT_THAT(refusal(read(0, {{data, 0}})), HasSubstr("pages"));
  EXPECT_THAT(refusal(read(0, {})), HasSubstr("buffers"));
  EXPECT_THAT(refusal(read(0, std::vector<iovec>(1025, {data, 4096}))), HasSubstr("buffers"));
  EXPECT_THAT(refusal(read(kBytes - 4096, {{data, 8192}})), HasSubstr("ends at"));
  EXPECT_THAT(refusal(read(~uint64_t{4095}, {{data, 8192}})), HasSubstr("ends at"));
  EXPECT_THAT(refusal(read(0, {{data, kMaxIoBytes + 4096}})), HasSubstr("at most"));
  IoRequest sync = read(0, {{data, 4096}});
  sync.op = IoOp::kSync;
  EXPECT_THAT(refusal(sync), HasSubstr("sync"));
}

TEST_P(DeviceConformanceTest, DoneMaySubmitAndTheDestructorWaits) {
  Memory memory(4096);
  std::atomic<int> finished{0};
  std::function<void(const IoResult&)> next;
  next = [&](const IoResult& result) {
    EXPECT_TRUE(result.status.ok());
    if (++finished < 100)
      device_->Submit({IoOp::kRead, IoClass::kDemand, 0, {{memory.data(), 4096}}, next});
  };
  device_->Submit({IoOp::kRead, IoClass::kDemand, 0, {{memory.data(), 4096}}, next});
  while (device_->RunOne()) {
  }
  EXPECT_TRUE(!simulated() || finished == 100);
  while (finished < 100) std::this_thread::yield();
  device_.reset();
  EXPECT_EQ(finished, 100);
}

TEST_P(DeviceConformanceTest, AFullQueueAnswersAtOnce) {
  if (simulated()) return;  // its queue is fixed
  device_.reset();
  IoQueueOptions none;
  none.waiting_max = 0;
  device_ = Open(none);
  Memory memory(4096);
  EXPECT_EQ(ReadNow(device_.get(), IoClass::kDemand, 0, memory.span()).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device_->Stats().refused, 1u);
}

TEST_P(DeviceConformanceTest, AFileThatShrankIsAShortRead) {
  if (simulated()) return;  // it has no file
  ASSERT_EQ(::truncate(path_.c_str(), 8192), 0);
  Memory memory(4 * 4096);
  const absl::Status status = ReadNow(device_.get(), IoClass::kDemand, 0, memory.span());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(ToStd(status.message())), HasSubstr("8192 of 16384"));
}

TEST_P(DeviceConformanceTest, RegisteredMemoryChangesNothing) {
  Memory memory(64 * 4096), other(64 * 4096);
  const bool registers = device_->RegisterMemory(memory.data(), 64 * 4096).ok();
  EXPECT_TRUE(GetParam().backend == IoBackend::kUring || !registers);
  memory.Fill(3);
  for (int i = 0; i < 64; i += 7) {
    const auto piece = memory.span().subspan(i * 4096, 4096);
    ASSERT_TRUE(WriteNow(device_.get(), IoClass::kFlush, i * 4096, piece).ok());
    ASSERT_TRUE(
        ReadNow(device_.get(), IoClass::kDemand, i * 4096, other.span().subspan(0, 4096)).ok());
    EXPECT_EQ(std::memcmp(other.data(), piece.data(), 4096), 0);
    std::memset(piece.data(), 0, 4096);
    ASSERT_TRUE(ReadNow(device_.get(), IoClass::kDemand, i * 4096, piece).ok());
    EXPECT_EQ(std::memcmp(other.data(), piece.data(), 4096), 0);
  }
  EXPECT_EQ(device_->Stats().fixed_buffer_requests > 0, registers);
  device_->UnregisterMemory(memory.data());
  const uint64_t before = device_->Stats().fixed_buffer_requests;
  ASSERT_TRUE(ReadNow(device_.get(), IoClass::kDemand, 0, memory.span()).ok());
  EXPECT_EQ(device_->Stats().fixed_buffer_requests, before);
}

// Carried out in the caller's thread where the device has a file, with the same answers.
TEST_P(DeviceConformanceTest, WhoWaitsMayCarryItOut) {
  Memory memory(4 * 4096), back(4 * 4096);
  memory.Fill(5);
  ASSERT_TRUE(WriteNow(device_.get(), IoClass::kFlush, 8192, memory.span()).ok());
  std::optional<std::thread::id> told_by;
  absl::Status status;
  IoRequest read{IoOp::kRead, IoClass::kDemand, 8192, {{back.data(), 4 * 4096}}, nullptr};
  read.in_callers_thread = true;
  read.done = [&](const IoResult& result) {
    told_by = std::this_thread::get_id();
    status = result.status;
  };
  device_->Submit(read);
  while (!told_by.has_value()) ASSERT_TRUE(device_->RunOne());
  EXPECT_EQ(*told_by, std::this_thread::get_id());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(std::memcmp(memory.data(), back.data(), 4 * 4096), 0);
  if (simulated()) return;  // it has no file
  const IoStats stats = device_->Stats();
  EXPECT_EQ(stats.of[static_cast<int>(IoClass::kDemand)][static_cast<int>(IoOp::kRead)].bytes,
            4u * 4096);
  EXPECT_EQ(stats.queued_bytes[static_cast<int>(IoClass::kDemand)], 0u);
  ASSERT_EQ(::truncate(path_.c_str(), 8192 + 4096), 0);
  device_->Submit(read);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

// Threads that carry out their own, beside others' requests, and a device that ends at once after.
TEST_P(DeviceConformanceTest, ManyCarryOutTheirOwn) {
  if (simulated()) return;  // one thread
  constexpr int kThreads = 4, kRounds = 200;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Memory memory(4096), back(4096);
      for (int i = 0; i < kRounds; ++i) {
        const uint64_t at = 4096ull * static_cast<uint64_t>(t * kRounds + i);
        memory.Fill(at);
        IoWait wait(device_.get());
        IoRequest write{IoOp::kWrite, IoClass::kFlush, at, {{memory.data(), 4096}}, nullptr};
        write.in_callers_thread = i % 2 == 0;
        wait.Submit(std::move(write));
        wrong += wait.Wait().ok() ? 0 : 1;
        IoRequest read{IoOp::kRead, IoClass::kDemand, at, {{back.data(), 4096}}, nullptr};
        read.in_callers_thread = i % 3 == 0;
        wait.Submit(std::move(read));
        wrong += wait.Wait().ok() ? 0 : 1;
        wrong += std::memcmp(memory.data(), back.data(), 4096) == 0 ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  device_.reset();
}

// Waves of requests that do not overlap within a wave, against a plain array.
TEST_P(DeviceConformanceTest, RandomWavesMatchAModel) {
  constexpr int kPages = kBytes / 4096;
  testing::SeededRandom random(11);
  std::vector<uint64_t> model(kPages, 0);  // what each page is filled with
  const auto expect = [&](int page, const std::byte* data) {
    for (int i = 0; i < 4096; i += 512) {
      uint64_t word = 0;
      std::memcpy(&word, data + i, 8);
      ASSERT_EQ(word, model[page]) << "page " << page;
    }
  };
  for (int wave = 0; wave < 60; ++wave) {
    Memory memory(kBytes);
    IoWait wait(device_.get());
    std::vector<std::pair<int, int>> reads;
    std::vector<uint64_t> after = model;
    for (int page = 0; page < kPages;) {
      const int count = std::min<int>(1 + static_cast<int>(random.Below(30)), kPages - page);
      const bool write = random.OneIn(2);
      IoRequest request{write ? IoOp::kWrite : IoOp::kRead,
                        static_cast<IoClass>(random.Below(kIoClasses)),
                        static_cast<uint64_t>(page) * 4096,
                        {},
                        nullptr};
      for (int i = page; i < page + count; ++i) {
        std::byte* data = memory.data() + i * 4096;
        if (write) {
          after[i] = random.Next();
          for (int at = 0; at < 4096; at += 512) std::memcpy(data + at, &after[i], 8);
        }
        request.buffers.push_back({data, 4096});
      }
      if (!write) reads.emplace_back(page, count);
      wait.Submit(std::move(request));
      page += count;
    }
    ASSERT_TRUE(wait.Wait().ok());
    for (const auto& [page, count] : reads) {
      for (int i = page; i < page + count; ++i) expect(i, memory.data() + i * 4096);
    }
    model = after;
    ASSERT_TRUE(SyncNow(device_.get(), IoClass::kFlush).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceConformanceTest,
                         ::testing::Values(Kind{"Uring", IoBackend::kUring},
                                           Kind{"Posix", IoBackend::kPosix},
                                           Kind{"PosixBuffered", IoBackend::kPosix, false},
                                           Kind{"Simulated", IoBackend::kSimulated}),
                         [](const auto& info) { return info.param.name; });

// ---- What only real devices have.

// As a container's profile does: io_uring_setup answers EPERM.
void ForbidUring() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{4, filter};
  KV_CHECK(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  KV_CHECK(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

TEST(OpenDeviceTest, ForbiddenUringFallsBackToThreads) {
  const std::string path = ::testing::TempDir() + "forbidden_" + std::to_string(::getpid());
  const pid_t child = ::fork();
  if (child == 0) {
    ForbidUring();
    auto file = OpenDeviceFile(path, {.create = true});
    bool good = file.ok() && AllocateFile(&*file, 1 << 20).ok();
    if (good) {
      const std::unique_ptr<Device> device = NewDevice(*std::move(file), {});
      Memory memory(4096);
      good = device->info().backend == IoBackend::kPosix &&
             device->info().fallback_reason.find(
                 "io_uring is refused here: Operation not "
                 "permitted") != std::string::npos &&
             WriteNow(device.get(), IoClass::kFlush, 0, memory.span()).ok();
    }
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::filesystem::remove(path);
}

TEST(OpenDeviceTest, ThreadsByConfigurationNeedNoReason) {
  const std::string path = ::testing::TempDir() + "posix_" + std::to_string(::getpid());
  auto file = OpenDeviceFile(path, {.create = true});
  ASSERT_TRUE(file.ok() && AllocateFile(&*file, 1 << 20).ok());
  DeviceOptions options;
  options.backend = WantedBackend::kPosix;
  const std::unique_ptr<Device> device = NewDevice(*std::move(file), options);
  EXPECT_EQ(device->info().backend, IoBackend::kPosix);
  EXPECT_EQ(device->info().fallback_reason.find("io_uring"), std::string::npos);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace kvarve
