// Suite "nvme": the segment log beside bare io_uring loops on the same file, in turns. The file
// lies in KVARVE_BENCH_DIR (without it in build/), takes 3 GiB and is removed.
#include <fcntl.h>
#include <liburing.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage/base/status_macros.h"
#include "storage/io/open_device.h"
#include "storage/segment/device_format.h"
#include "storage/segment/map_owner_testing.h"
#include "storage/segment/segment_log.h"
#include "tests/perf/bench_table.h"

namespace kvarve::perf {
namespace {

using testing::MapOwner;
using testing::TestChain;
using testing::TestNs;

constexpr uint64_t kBlock = 1 << 20;
constexpr uint64_t kRun = 4 << 20;
constexpr uint64_t kSlots = 8;
constexpr uint64_t kSegment = 256ull << 20;
constexpr uint64_t kLogBytes = kFirstSlotOffset + kSlots * kSegment;
constexpr uint64_t kTailBytes = 1ull << 30;  // behind the log: what the bare loop overwrites
constexpr uint64_t kRoundBytes = 512ull << 20;
constexpr size_t kDepth = 8;
constexpr size_t kSmall = 64 << 10;
constexpr int kSmallReads = 400;

double CpuSeconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// What one would write without kvarve: one ring, fixed buffers, `depth` requests.
class BareLoop {
 public:
  BareLoop(const std::string& path, size_t depth, size_t bytes)
      : depth_(depth), bytes_(bytes), memory_(depth * bytes) {
    fd_.reset(::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
    KV_CHECK(fd_.valid());
    KV_CHECK(::io_uring_queue_init(64, &ring_, 0) == 0);
    const iovec all{memory_.data(), memory_.size()};
    fixed_ = ::io_uring_register_buffers(&ring_, &all, 1) == 0;
  }
  ~BareLoop() { ::io_uring_queue_exit(&ring_); }

  // Moves a piece at each offset; returns the microseconds.
  double Run(bool write, const std::vector<uint64_t>& offsets) {
    const double start = NowMicros();
    size_t next = 0, inflight = 0;
    for (size_t i = 0; i < depth_ && next < offsets.size(); ++i, ++inflight)
      Prepare(write, offsets[next++], i);
    ::io_uring_submit(&ring_);
    while (inflight > 0) {
      io_uring_cqe* cqe = nullptr;
      KV_CHECK(::io_uring_wait_cqe(&ring_, &cqe) == 0);
      KV_CHECK(cqe->res == static_cast<int>(bytes_));
      const size_t slot = ::io_uring_cqe_get_data64(cqe);
      ::io_uring_cqe_seen(&ring_, cqe);
      --inflight;
      if (next == offsets.size()) continue;
      Prepare(write, offsets[next++], slot);
      ::io_uring_submit(&ring_);
      ++inflight;
    }
    return NowMicros() - start;
  }

 private:
  void Prepare(bool write, uint64_t offset, size_t slot) {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    std::byte* at = memory_.data() + slot * bytes_;
    const auto bytes = static_cast<unsigned>(bytes_);
    if (write && fixed_) {
      ::io_uring_prep_write_fixed(sqe, fd_.get(), at, bytes, offset, 0);
    } else if (write) {
      ::io_uring_prep_write(sqe, fd_.get(), at, bytes, offset);
    } else if (fixed_) {
      ::io_uring_prep_read_fixed(sqe, fd_.get(), at, bytes, offset, 0);
    } else {
      ::io_uring_prep_read(sqe, fd_.get(), at, bytes, offset);
    }
    ::io_uring_sqe_set_data64(sqe, slot);
  }

  const size_t depth_, bytes_;
  AlignedBuffer memory_;
  UniqueFd fd_;
  io_uring ring_;
  bool fixed_ = false;
};

class NvmeBench {
 public:
  absl::Status SetUp() {
    const char* folder = std::getenv("KVARVE_BENCH_DIR");
    path_ = std::string(folder != nullptr                  ? folder
                        : std::filesystem::exists("build") ? "build"
                                                           : ".") +
            "/kvarve_nvme_bench";
    KV_RETURN_IF_ERROR(FormatDevice(path_, {.bytes = kLogBytes, .force = true}).status());
    KV_RETURN_IF_ERROR(AppendTail());
    KV_ASSIGN_OR_RETURN(device_, OpenDevice(path_, {}));
    catalogue_ = NewMemoryCatalogue();
    KV_ASSIGN_OR_RETURN(log_, SegmentLog::Open(device_.get(), catalogue_.get(), &owner_, {}));
    KV_RETURN_IF_ERROR(log_->Recover());
    device_->RegisterMemory(memory_.data(), memory_.size()).IgnoreError();
    WriteRound();
    return absl::OkStatus();
  }
  ~NvmeBench() {
    log_.reset();
    if (device_) device_->UnregisterMemory(memory_.data());
    device_.reset();
    std::filesystem::remove(path_);
  }

  // Payload; returns the microseconds.
  double WriteRound() {
    const double start = NowMicros();
    for (uint64_t done = 0; done < kRoundBytes; done += chain_.memory.size())
      log_->Append(StreamClass::kFresh, chain_.blocks);
    log_->Drain();
    return NowMicros() - start;
  }
  double BareWriteRound(BareLoop* bare) const {
    std::vector<uint64_t> offsets;
    for (uint64_t at = 0; at < kRoundBytes; at += kRun)
      offsets.push_back(kLogBytes + at % kTailBytes);
    return bare->Run(/*write=*/true, offsets);
  }

  // The runs of the last round that was written, `depth` at a time, each verified.
  double ReadRound() {
    IoGate gate;
    size_t inflight = 0;
    const double start = NowMicros();
    const std::vector<std::vector<BlockRead>> runs = Runs();
    for (size_t i = 0; i < runs.size(); ++i) {
      std::vector<BlockRead> reads = runs[i];
      std::byte* into = nullptr;
      {
        MutexLock lock(&gate.mutex);
        while (inflight == kDepth) gate.changed.wait(gate.mutex);
        into = memory_.data() + FreeSlot() * kRun;
        ++inflight;
      }
      auto left = std::make_shared<std::atomic<size_t>>(reads.size());
      for (size_t b = 0; b < reads.size(); ++b) reads[b].into = into + b * kBlock;
      log_->Read(std::move(reads), IoClass::kDemand,
                 [&, left, into](size_t, const absl::Status& status) {
                   KV_CHECK(status.ok());
                   if (left->fetch_sub(1) > 1) return;
                   MutexLock lock(&gate.mutex);
                   busy_[(into - memory_.data()) / kRun] = false;
                   --inflight;
                   gate.changed.notify_all();
                 });
    }
    MutexLock lock(&gate.mutex);
    while (inflight > 0) gate.changed.wait(gate.mutex);
    return NowMicros() - start;
  }
  double BareReadRound(BareLoop* bare) const {
    std::vector<uint64_t> offsets;
    for (const auto& run : Runs()) offsets.push_back(OffsetOf(run[0].at));
    return bare->Run(/*write=*/false, offsets);
  }
  uint64_t read_bytes() const { return Runs().size() * kRun; }

  // Median microseconds of single blocks of 64 KiB, one after the other.
  double SmallReads() {
    std::vector<double> micros;
    for (int i = 0; i < kSmallReads; ++i) {
      const auto known =
          owner_.Find(TestNs(2), small_.blocks[i * 7 % small_.blocks.size()].record.key);
      const double start = NowMicros();
      KV_CHECK(ReadBlocks(log_.get(), device_.get(),
                          {testing::ReadOf(TestNs(2), *known, memory_.data())}, IoClass::kDemand)[0]
                   .ok());
      micros.push_back(NowMicros() - start);
    }
    return Median(micros);
  }
  double BareSmallReads(BareLoop* bare) {
    std::vector<double> micros;
    for (int i = 0; i < kSmallReads; ++i) {
      const auto known =
          owner_.Find(TestNs(2), small_.blocks[i * 7 % small_.blocks.size()].record.key);
      micros.push_back(bare->Run(/*write=*/false, {OffsetOf(known->at)}));
    }
    return Median(micros);
  }
  void PutSmall() {
    log_->Append(StreamClass::kFresh, small_.blocks);
    log_->Drain();
  }
  const std::string& path() const { return path_; }

 private:
  absl::Status AppendTail() {
    DeviceFileOptions options;
    KV_ASSIGN_OR_RETURN(DeviceFile file, OpenDeviceFile(path_, options));
    KV_RETURN_IF_ERROR(AllocateFile(&file, kLogBytes + kTailBytes));
    const std::unique_ptr<Device> device = NewDevice(std::move(file), {});
    const AlignedBuffer zeros(kRun);
    for (uint64_t at = 0; at < kTailBytes; at += kRun)
      KV_RETURN_IF_ERROR(WriteNow(device.get(), IoClass::kFlush, kLogBytes + at, zeros.span()));
    return SyncNow(device.get(), IoClass::kFlush);
  }
  // Where the blocks of the chain lie now, four neighbours at a time.
  std::vector<std::vector<BlockRead>> Runs() const {
    std::vector<std::vector<BlockRead>> runs;
    for (size_t repeat = 0; repeat < kRoundBytes / chain_.memory.size(); ++repeat) {
      for (size_t i = 0; i + 4 <= chain_.blocks.size(); i += 4) {
        std::vector<BlockRead> run;
        for (size_t b = i; b < i + 4; ++b)
          run.push_back(testing::ReadOf(
              TestNs(1), *owner_.Find(TestNs(1), chain_.blocks[b].record.key), nullptr));
        runs.push_back(std::move(run));
      }
    }
    return runs;
  }
  uint64_t OffsetOf(const BlockLocation& at) const { return *log_->OffsetOf(at); }
  size_t FreeSlot() {
    size_t slot = 0;
    while (busy_[slot]) ++slot;
    busy_[slot] = true;
    return slot;
  }

  std::string path_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Catalogue> catalogue_;
  MapOwner owner_;
  std::unique_ptr<SegmentLog> log_;
  TestChain chain_{TestNs(1), 0, 128, kBlock};
  TestChain small_{TestNs(2), 0, 1000, kSmall};
  AlignedBuffer memory_{kDepth * kRun};
  std::array<bool, kDepth> busy_{};
};

void Run(BenchTable* table) {
  const std::vector<std::string> names = {"nvme/read/runs_4MiB", "nvme/read/core_s_per_GB",
                                          "nvme/write/sequential", "nvme/write/core_s_per_GB",
                                          "nvme/read/random_64KiB_over_bare"};
  bool wanted = false;
  for (const std::string& name : names) wanted |= table->Wants(name);
  if (!wanted) return;
  NvmeBench bench;
  if (const absl::Status status = bench.SetUp(); !status.ok()) {
    for (const std::string& name : names) table->Fail(name, std::string(status.message()));
    return;
  }
  BareLoop bare(bench.path(), kDepth, kRun);
  const auto gb = [](uint64_t bytes, double micros) {
    return static_cast<double>(bytes) / 1e3 / micros;
  };
  table->Compare({.name = names[0],
                  .unit = "GB/s",
                  .better = Better::kHigher,
                  .gate = 0.90,
                  .mine = [&] { return gb(bench.read_bytes(), bench.ReadRound()); },
                  .bare = [&] { return gb(bench.read_bytes(), bench.BareReadRound(&bare)); }});
  table->Measure({.name = names[1], .unit = "core-s/GB", .gate = 0.06, .measure = [&] {
                    const double before = CpuSeconds();
                    bench.ReadRound();
                    return (CpuSeconds() - before) / (bench.read_bytes() / 1e9);
                  }});
  table->Compare({.name = names[2],
                  .unit = "GB/s",
                  .better = Better::kHigher,
                  .gate = 0.85,
                  .mine = [&] { return gb(kRoundBytes, bench.WriteRound()); },
                  .bare = [&] { return gb(kRoundBytes, bench.BareWriteRound(&bare)); }});
  table->Measure({.name = names[3], .unit = "core-s/GB", .gate = 0.10, .measure = [&] {
                    const double before = CpuSeconds();
                    bench.WriteRound();
                    return (CpuSeconds() - before) / (kRoundBytes / 1e9);
                  }});
  bench.PutSmall();
  BareLoop small(bench.path(), 1, kSmall);
  table->Measure({.name = names[4], .unit = "us", .gate = 15, .measure = [&] {
                    return bench.SmallReads() - bench.BareSmallReads(&small);
                  }});
}

KVARVE_BENCH_SUITE(nvme, "the segment log beside bare io_uring loops on the same file", Run);

}  // namespace
}  // namespace kvarve::perf
