// Suite "nvme": the segment log, and the cache over it, beside bare io_uring loops on the same
// file, in turns. The file lies in KVARVE_BENCH_DIR (without it in build/), takes 3 GiB and is
// removed.
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
#include "tests/perf/bare_device.h"
#include "tests/perf/bench_table.h"
#include "tests/perf/nvme_cache_rows.h"

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
  double BareReadRound(BareLoop* bare, const BareLoop::Check& check = nullptr) const {
    std::vector<uint64_t> offsets;
    for (const auto& run : Runs()) offsets.push_back(OffsetOf(run[0].at));
    return bare->Run(/*write=*/false, offsets, check);
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

uint64_t CheckRun(std::span<const std::byte> run) { return ChecksumsOf(run, kBlock); }

// What a gigabyte read costs at least: the bare loop, which makes nothing of what it reads, adds it
// up, or checks each block as the log does.
void RunCostRows(BenchTable* table, NvmeBench* bench, BareLoop* bare) {
  const auto cost = [=](const BareLoop::Check& check) {
    return CoreSecondsPerGb(bench->read_bytes(), [&] { bench->BareReadRound(bare, check); });
  };
  table->Compare(
      {.name = "nvme/read/core_s_per_GB",
       .unit = "core-s/GB",
       .mine = [=] { return CoreSecondsPerGb(bench->read_bytes(), [&] { bench->ReadRound(); }); },
       .bare = [=] { return cost(CheckRun); },
       .value_gate = 0.06});
  table->Measure(
      {.name = "nvme/bare/read_and_sum/core_s_per_GB", .unit = "core-s/GB", .measure = [=] {
         return cost([](auto piece) { return SumOf(piece.data(), piece.size()); });
       }});
  table->Measure({.name = "nvme/bare/read/core_s_per_GB", .unit = "core-s/GB", .measure = [=] {
                    return cost(nullptr);
                  }});
}

void RunLogRows(BenchTable* table) {
  const std::vector<std::string> names = {"nvme/read/runs_4MiB",
                                          "nvme/read/core_s_per_GB",
                                          "nvme/write/sequential",
                                          "nvme/write/core_s_per_GB",
                                          "nvme/read/random_64KiB_over_bare",
                                          "nvme/read/runs_4MiB_of_checked",
                                          "nvme/bare/read_and_sum/core_s_per_GB",
                                          "nvme/bare/read/core_s_per_GB"};
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
  // Beside what has to be done for each byte, whoever does it.
  table->Compare(
      {.name = names[5],
       .unit = "GB/s",
       .better = Better::kHigher,
       .mine = [&] { return gb(bench.read_bytes(), bench.ReadRound()); },
       .bare = [&] { return gb(bench.read_bytes(), bench.BareReadRound(&bare, CheckRun)); }});
  RunCostRows(table, &bench, &bare);
  table->Compare({.name = names[2],
                  .unit = "GB/s",
                  .better = Better::kHigher,
                  .gate = 0.85,
                  .mine = [&] { return gb(kRoundBytes, bench.WriteRound()); },
                  .bare = [&] { return gb(kRoundBytes, bench.BareWriteRound(&bare)); }});
  table->Measure({.name = names[3], .unit = "core-s/GB", .gate = 0.10, .measure = [&] {
                    return CoreSecondsPerGb(kRoundBytes, [&] { bench.WriteRound(); });
                  }});
  bench.PutSmall();
  BareLoop small(bench.path(), 1, kSmall);
  table->Measure({.name = names[4], .unit = "us", .gate = 15, .measure = [&] {
                    return bench.SmallReads() - bench.BareSmallReads(&small);
                  }});
}

void Run(BenchTable* table) {
  RunLogRows(table);
  RunNvmeCacheRows(table);
}

KVARVE_BENCH_SUITE(nvme, "the NVMe tier beside bare io_uring loops on the same file", Run);

}  // namespace
}  // namespace kvarve::perf
