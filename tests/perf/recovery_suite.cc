// Suite "recovery": how long a start takes until 4,000,000 blocks are in the index again, from the
// catalogue in RocksDB and from the footers alone. The device is a sparse file of headers and
// footers; payloads are not read by a start. It lies in KVARVE_BENCH_DIR (the current folder
// without it).
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "storage/base/status_macros.h"
#include "storage/index/index.h"
#include "storage/io/aligned_buffer.h"
#include "storage/io/open_device.h"
#include "storage/segment/device_format.h"
#include "storage/segment/segment_log.h"
#include "storage/testing/block_generator.h"
#include "tests/perf/bench_table.h"

namespace kvarve::perf {
namespace {

constexpr uint64_t kSegments = 64;
constexpr uint64_t kRecordsEach = 62'500;
constexpr uint64_t kSegment = 256ull << 20;

// Puts what is found into an index, as a daemon does.
class IndexOwner final : public LogOwner {
 public:
  IndexOwner() : index_(1, kSegments * kRecordsEach) {}
  void OnRecovered(const SegmentTable& table) override {
    for (const BlockRecord& record : table.records) {
      index_
          .Insert(record.ns_ref, record.key, nullptr, record.depth(),
                  uint64_t{table.facts.slot} << 24 | record.off4k, record.c64_raw)
          .IgnoreError();
    }
  }
  void OnWritten(const AppendBlock&, const BlockLocation&) override {}
  void OnNotWritten(const AppendBlock&, const absl::Status&) override {}
  void ChooseSurvivors(const SegmentTable&, bool, std::vector<bool>*) override {}
  void OnMoved(const NamespaceId&, const BlockRecord&, const BlockLocation&,
               const BlockLocation&) override {}
  void OnReclaimed(const SegmentTable&) override {}
  uint64_t entries() const { return index_.Stats().entries; }

 private:
  Index index_;
};

class RecoveryBench {
 public:
  absl::Status SetUp() {
    const char* folder = std::getenv("KVARVE_BENCH_DIR");
    folder_ = std::string(folder != nullptr                  ? folder
                          : std::filesystem::exists("build") ? "build"
                                                             : ".") +
              "/kvarve_recovery_bench";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    KV_ASSIGN_OR_RETURN(DeviceFile file, OpenDeviceFile(path(), {.create = true}));
    const uint64_t bytes = kFirstSlotOffset + (kSegments + 4) * kSegment;
    if (::ftruncate(file.fd.get(), static_cast<off_t>(bytes)) != 0)
      return absl::ResourceExhaustedError("no sparse file of 17 GiB here");
    file.bytes = bytes;
    const std::unique_ptr<Device> device = NewDevice(std::move(file), {});
    KV_ASSIGN_OR_RETURN(const Superblock superblock,
                        FormatOpenDevice(device.get(), {.overwrite = false}));
    const uint64_t key = FormatKey(superblock);
    for (uint32_t slot = 0; slot < kSegments; ++slot)
      KV_RETURN_IF_ERROR(WriteSegment(device.get(), superblock, key, slot));
    return SyncNow(device.get(), IoClass::kFlush);
  }
  ~RecoveryBench() { std::filesystem::remove_all(folder_); }

  // Seconds until every block is in the index.
  double Start(Catalogue* catalogue) const {
    auto device = OpenDevice(path(), {});
    KV_CHECK(device.ok());
    IndexOwner owner;
    const double start = NowMicros();
    auto log = SegmentLog::Open(device->get(), catalogue, &owner, {.recovery_thread = true});
    KV_CHECK(log.ok() && (*log)->Recover().ok());
    const double seconds = (NowMicros() - start) / 1e6;
    KV_CHECK(owner.entries() == kSegments * kRecordsEach);
    return seconds;
  }
  std::string catalogue_path() const { return folder_ + "/catalogue"; }

 private:
  std::string path() const { return folder_ + "/device"; }

  static absl::Status WriteSegment(Device* device, const Superblock& superblock, uint64_t key,
                                   uint32_t slot) {
    SegmentHeader header;
    header.uuid = superblock.uuid;
    header.slot = slot;
    header.generation = 1;
    header.segment_id = slot + 1;
    const AlignedBuffer page(kUnit);
    EncodeSegmentHeader(header, key, std::span<std::byte, kUnit>(page.data(), kUnit));
    const uint64_t at = superblock.slot_offset(slot);
    KV_RETURN_IF_ERROR(WriteNow(device, IoClass::kFlush, at, page.span()));
    SegmentTable table;
    table.facts.uuid = superblock.uuid;
    table.facts.segment_id = header.segment_id;
    table.facts.generation = 1;
    table.facts.slot = slot;
    table.namespaces.emplace_back();
    for (uint64_t i = 0; i < kRecordsEach; ++i) {
      BlockRecord& record = table.records.emplace_back();
      record.key = testing::KeyOf(slot * kRecordsEach + i);
      record.key_len = 32;
      record.off4k = static_cast<uint32_t>(2 + i);
      record.stored_len = record.raw_len = kUnit;
      record.seq = slot * kRecordsEach + i + 1;
    }
    const AlignedBuffer footer((TablePages(1, kRecordsEach) + 1) * kUnit);
    EncodeFooter(&table, key, footer.span());
    return WriteNow(device, IoClass::kFlush, at + kSegment - footer.size(), footer.span());
  }

  std::string folder_;
};

void Run(BenchTable* table) {
  const std::string footers = "recovery/4M_blocks/from_footers";
  const std::string catalogue = "recovery/4M_blocks/from_catalogue";
  if (!table->Wants(footers) && !table->Wants(catalogue)) return;
  RecoveryBench bench;
  if (const absl::Status status = bench.SetUp(); !status.ok()) {
    table->Fail(footers, std::string(status.message()));
    table->Fail(catalogue, std::string(status.message()));
    return;
  }
  table->Measure({.name = footers,
                  .unit = "s",
                  .gate = 4,
                  .measure = [&] { return bench.Start(NewMemoryCatalogue().get()); },
                  .rounds = 3});
  bench.Start(OpenCatalogue(bench.catalogue_path()).catalogue.get());  // fills it
  table->Measure(
      {.name = catalogue,
       .unit = "s",
       .gate = 3,
       .measure =
           [&] { return bench.Start(OpenCatalogue(bench.catalogue_path()).catalogue.get()); },
       .rounds = 3});
}

KVARVE_BENCH_SUITE(recovery, "a start with 4,000,000 blocks on the device", Run);

}  // namespace
}  // namespace kvarve::perf
