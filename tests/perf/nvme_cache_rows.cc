#include "tests/perf/nvme_cache_rows.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "storage/cache/cache.h"
#include "storage/io/open_device.h"
#include "storage/segment/device_format.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/opaque_namespace.h"
#include "tests/perf/bare_device.h"
#include "tests/perf/bench_client.h"
#include "tests/perf/huge_memory.h"

namespace kvarve::perf {
namespace {

constexpr uint64_t kHostBytes = 64ull << 20;
constexpr uint64_t kDeviceBytes = 2ull << 30;
constexpr size_t kSmall = 64 << 10;
constexpr size_t kSmallBlocks =
    3000;  // three times what memory holds: each has left when it comes round
constexpr int kSmallReads = 400;
constexpr size_t kBlock = 1 << 20;
constexpr size_t kChainBlocks = 32;
constexpr size_t kChains = 16;
constexpr size_t kRun = 4 << 20;
constexpr size_t kDepth = 8;
constexpr int64_t kPatience = 60'000'000'000;
constexpr uint64_t kWrittenAt = 16ull << 20;  // behind superblocks and the first header

std::string FolderOfBench() {
  const char* folder = std::getenv("KVARVE_BENCH_DIR");
  return folder != nullptr ? folder : std::filesystem::exists("build") ? "build" : ".";
}

// Offsets of random pieces of what was written, as the bare loop reads them.
std::vector<uint64_t> RandomPieces(size_t count, uint64_t bytes, uint64_t span) {
  std::vector<uint64_t> offsets;
  for (size_t i = 0; i < count; ++i) {
    offsets.push_back(kWrittenAt + i * 7919 % (span / bytes) * bytes);
  }
  return offsets;
}

double BareSmallMicros(BareLoop* bare) {
  std::vector<double> micros;
  for (const uint64_t at : RandomPieces(kSmallReads, kSmall, kSmallBlocks * kSmall)) {
    micros.push_back(bare->Run(/*write=*/false, {at}));
  }
  return Median(micros);
}

class CacheBench {
 public:
  absl::Status SetUp() {
    path_ = FolderOfBench() + "/kvarve_nvme_cache_bench";
    bare_path_ = path_ + "_bare";
    KV_RETURN_IF_ERROR(FormatDevice(path_, {.bytes = kDeviceBytes, .force = true}).status());
    KV_RETURN_IF_ERROR(FormatDevice(bare_path_, {.bytes = kWrittenAt + kRoundBytes,
                                                 .segment_bytes = 64ull << 20,
                                                 .force = true})
                           .status());
    CacheOptions options;
    options.arena.capacity_bytes = kHostBytes;
    options.devices.drive_writes_per_day = 0;
    KV_ASSIGN_OR_RETURN(cache_, Cache::Create(options));
    KV_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(path_, {}));
    KV_RETURN_IF_ERROR(cache_->AddDevice(std::move(device)));
    KV_ASSIGN_OR_RETURN(small_, Open("small", kSmall));
    KV_ASSIGN_OR_RETURN(large_, Open("large", kBlock));
    for (size_t i = 0; i < kSmallBlocks; ++i) Put(small_, testing::KeyChain(i, 1));
    return absl::OkStatus();
  }
  ~CacheBench() {
    cache_.reset();
    std::filesystem::remove(path_);
    std::filesystem::remove(bare_path_);
  }

  // Median microseconds until a block that only the device has is in memory, verified.
  double SmallMicros() {
    std::vector<double> micros;
    for (int i = 0; i < kSmallReads; ++i) {
      const std::vector<BlockKey> key = testing::KeyChain(next_++ * 7919 % kSmallBlocks, 1);
      const double start = NowMicros();
      KV_CHECK(cache_->LoadNow(small_.handle, key, IoClass::kDemand) == 1);
      micros.push_back(NowMicros() - start);
    }
    return Median(micros);
  }
  // Payload bytes of a round.
  static constexpr uint64_t kRoundBytes = kChains * kChainBlocks * kBlock;
  void PutRound() {
    for (size_t c = 0; c < kChains; ++c) Put(large_, testing::KeyChain(chain_++, kChainBlocks));
    KV_CHECK(cache_->WaitDevices(kPatience));
  }
  // The chains of the last round, which are larger than memory, one after the other.
  void ReadRound() {
    for (size_t c = 0; c < kChains; ++c) {
      const std::vector<BlockKey> chain = testing::KeyChain(chain_ - kChains + c, kChainBlocks);
      KV_CHECK(cache_->LoadNow(large_.handle, chain, IoClass::kDemand) == kChainBlocks);
    }
  }
  double ReadGbPerSecond() {
    const double start = NowMicros();
    ReadRound();
    return kRoundBytes / 1e3 / (NowMicros() - start);
  }
  const std::string& path() const { return path_; }
  // A file that the bare loop may write.
  const std::string& bare_path() const { return bare_path_; }

 private:
  absl::StatusOr<NamespaceInfo> Open(const std::string& model, uint64_t bytes) {
    NamespaceDescriptor descriptor = OpaqueNamespace(model, bytes);
    descriptor.tenant = "default";
    return cache_->OpenNamespace(descriptor);
  }
  void Put(const NamespaceInfo& ns, std::span<const BlockKey> keys) {
    for (size_t at = 0; at < keys.size();) {
      const std::vector<const std::byte*> sources(keys.size() - at, block_.data());
      std::vector<PutResult> results(sources.size());
      PutRequest request;
      request.ns = ns.handle;
      if (at > 0) request.parent = keys[at - 1];
      request.first_depth = static_cast<uint32_t>(at);
      request.keys = keys.subspan(at);
      request.sources = sources;
      KV_CHECK(cache_->Put(request, results).ok());
      const auto bad = std::find_if(results.begin(), results.end(), [](PutResult result) {
        return result != PutResult::kStored && result != PutResult::kExists;
      });
      at += static_cast<size_t>(bad - results.begin());
      // The device has to catch up.
      if (bad != results.end()) ::usleep(500);
    }
  }

  std::string path_, bare_path_;
  std::unique_ptr<Cache> cache_;
  NamespaceInfo small_, large_;
  AlignedBuffer block_{kBlock};
  uint64_t next_ = 0, chain_ = 1 << 20;
};

void RunInProcess(BenchTable* table) {
  const std::string small = "nvme/cache/random_64KiB_over_bare", read = "nvme/cache/read/runs_4MiB",
                    read_cpu = "nvme/cache/read/core_s_per_GB",
                    write_cpu = "nvme/cache/put/core_s_per_GB";
  if (!table->Wants(small) && !table->Wants(read) && !table->Wants(read_cpu) &&
      !table->Wants(write_cpu)) {
    return;
  }
  CacheBench bench;
  if (const absl::Status status = bench.SetUp(); !status.ok()) {
    return table->Fail(small, std::string(status.message()));
  }
  BareLoop bare_small(bench.path(), 1, kSmall, kHostBytes / kSmall),
      bare_runs(bench.path(), kDepth, kRun);
  table->Measure({.name = small, .unit = "us", .gate = 15, .measure = [&] {
                    return bench.SmallMicros() - BareSmallMicros(&bare_small);
                  }});
  bench.PutRound();
  const auto offsets = RandomPieces(CacheBench::kRoundBytes / kRun, kRun, CacheBench::kRoundBytes);
  table->Compare({.name = read,
                  .unit = "GB/s",
                  .better = Better::kHigher,
                  .mine = [&] { return bench.ReadGbPerSecond(); },
                  .bare =
                      [&] {
                        return CacheBench::kRoundBytes / 1e3 /
                               bare_runs.Run(/*write=*/false, offsets);
                      }});
  const uint64_t bytes = CacheBench::kRoundBytes;
  table->Compare({.name = read_cpu,
                  .unit = "core-s/GB",
                  .mine = [&] { return CoreSecondsPerGb(bytes, [&] { bench.ReadRound(); }); },
                  .bare =
                      [&] {
                        return CoreSecondsPerGb(bytes, [&] {
                          bare_runs.Run(/*write=*/false, offsets,
                                        [](auto piece) { return ChecksumsOf(piece, kBlock); });
                        });
                      },
                  .value_gate = 0.06});
  // With the copy into memory and its checksum, which a put has without a device, too.
  BareLoop bare_writes(bench.bare_path(), kDepth, kRun);
  HugeMemory memory(kHostBytes, 0);
  const AlignedBuffer block(kBlock);
  volatile uint64_t sum = 0;  // kept, so that it is computed
  table->Compare({.name = write_cpu,
                  .unit = "core-s/GB",
                  .mine = [&] { return CoreSecondsPerGb(bytes, [&] { bench.PutRound(); }); },
                  .bare =
                      [&] {
                        return CoreSecondsPerGb(bytes, [&] {
                          for (uint64_t at = 0; at < bytes; at += kBlock)
                            sum = sum + CopyAndChecksum(memory.data() + at % memory.size(),
                                                        block.data(), kBlock, /*seed=*/at);
                          bare_writes.Run(/*write=*/true, offsets);
                        });
                      }});
}

// A client's get of a block that only the device has, by a daemon. Shown, without a gate.
void RunThroughDaemon(BenchTable* table) {
  const std::string name = "nvme/local/random_64KiB";
  if (!table->Wants(name)) return;
  const std::string folder = FolderOfBench() + "/kvarve_nvme_local_bench";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string path = std::filesystem::absolute(folder + "/device").string();
  const auto formatted = FormatDevice(path, {.bytes = kDeviceBytes, .force = true});
  auto daemon = BenchDaemon::StartKvarved(
      kHostBytes, /*prefault=*/true,
      {"--nvme.devices=" + path, "--nvme.drive_writes_per_day=0",
       "--tenant.state_dir=" + std::filesystem::absolute(folder).string()});
  if (!formatted.ok() || !daemon.ok()) {
    const absl::Status& status = formatted.ok() ? daemon.status() : formatted.status();
    return table->Fail(name, std::string(status.message()));
  }
  auto client = BenchClient::Connect(**daemon);
  KV_CHECK(client.ok());
  const ClientNamespace ns = (*client)->Open(kSmall);
  std::vector<std::byte> block(kSmall);
  const std::vector<const std::byte*> from = {block.data()};
  for (size_t i = 0; i < kSmallBlocks; ++i) {
    const auto put = (*client)->client()->Put(ns, {.keys = testing::KeyChain(i, 1)}, from);
    KV_CHECK(put.ok() && put->front() == PutOutcome::kStored);
  }
  BareLoop bare(path, 1, kSmall);
  uint64_t next = 0;
  table->Compare({.name = name,
                  .unit = "us",
                  .mine =
                      [&] {
                        std::vector<double> micros;
                        std::vector<std::byte*> to = {block.data()};
                        for (int i = 0; i < kSmallReads; ++i) {
                          const auto key = testing::KeyChain(next++ * 7919 % kSmallBlocks, 1);
                          const double start = NowMicros();
                          KV_CHECK((*client)->client()->Get(ns, key, to).value_or(0) == 1);
                          micros.push_back(NowMicros() - start);
                        }
                        return Median(micros);
                      },
                  .bare = [&] { return BareSmallMicros(&bare); }});
  client->reset();
  daemon->reset();
  std::filesystem::remove_all(folder);
}

}  // namespace

void RunNvmeCacheRows(BenchTable* table) {
  RunInProcess(table);
  RunThroughDaemon(table);
}

}  // namespace kvarve::perf
