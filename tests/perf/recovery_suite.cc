// Suite "recovery": how long a start takes until 4,000,000 blocks are in the index again, from the
// catalogue in RocksDB and from the footers alone: the log, and a whole daemon from its exec on.
// The device is a sparse file of headers and footers; payloads are not read by a start, and all but
// a few are holes. It lies in KVARVE_BENCH_DIR (the current folder without it).
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "storage/base/status_macros.h"
#include "storage/block/checksum.h"
#include "storage/index/index.h"
#include "storage/io/aligned_buffer.h"
#include "storage/io/open_device.h"
#include "storage/segment/device_format.h"
#include "storage/segment/segment_log.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/opaque_namespace.h"
#include "tests/perf/bench_daemon.h"
#include "tests/perf/bench_table.h"

namespace kvarve::perf {
namespace {

constexpr uint64_t kSegments = 64;
constexpr uint64_t kRecordsEach = 62'500;
constexpr uint64_t kSegment = 256ull << 20;
constexpr uint64_t kArena = 1ull << 30;
constexpr int64_t kPatience = 30'000'000'000;
constexpr uint64_t kSeed = 3;  // of block bytes

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
    folder_ = std::filesystem::absolute(folder_).string();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(state());
    KV_RETURN_IF_ERROR(LearnNamespace());
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

  // Seconds of a daemon, from its exec on, until it takes clients, until one of them got a block of
  // the device, and until all of it is known.
  struct Times {
    double ready = 0, first_hit = 0, complete = 0;
  };
  Times StartDaemon(bool loses_catalogue) const {
    if (loses_catalogue) std::filesystem::remove_all(state() + "/catalogue");
    Times times;
    const double start = NowMicros();
    const auto since = [start] { return (NowMicros() - start) / 1e6; };
    const auto daemon = Daemon(/*with_device=*/true);
    KV_CHECK(daemon.ok());
    const std::unique_ptr<Client> client = Connect(**daemon);
    times.ready = since();
    const ClientNamespace ns = *client->OpenNamespace(OpaqueNamespace("recovery", kUnit));
    std::vector<std::byte> block(kUnit);
    std::byte* const to[] = {block.data()};
    const BlockKey key = testing::KeyOf((kSegments - 1) * kRecordsEach);
    while (client->Get(ns, {&key, 1}, to).value_or(0) == 0) ::usleep(1000);
    KV_CHECK(testing::IsBlock(kSeed, key, block));
    times.first_hit = since();
    const auto is_complete = [&] {
      const auto answer = client->Admin(R"({"op":"status"})");
      KV_CHECK(answer.ok());
      const auto nvme = nlohmann::json::parse(*answer)["nvme"];
      KV_CHECK(!nvme["recovered"] || nvme["blocks"] == kSegments * kRecordsEach);
      return nvme["recovered"].get<bool>();
    };
    while (!is_complete()) ::usleep(5000);
    times.complete = since();
    return times;
  }

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
  std::string state() const { return folder_ + "/state"; }
  absl::StatusOr<std::unique_ptr<BenchDaemon>> Daemon(bool with_device) const {
    std::vector<std::string> flags = {"--tenant.state_dir=" + state(),
                                      "--nvme.drive_writes_per_day=0"};
    if (with_device) flags.push_back("--nvme.devices=" + path());
    return BenchDaemon::StartKvarved(kArena, /*prefault=*/true, flags);
  }
  static std::unique_ptr<Client> Connect(const BenchDaemon& daemon) {
    ClientOptions options;
    options.endpoint = daemon.endpoint();
    options.timeout_nanos = kPatience;
    options.load_timeout_nanos = kPatience;
    options.probe_interval_nanos = 5'000'000;
    auto client = Client::Create(options);
    KV_CHECK(client.ok() && (*client)->WaitReady(kPatience).ok());
    return *std::move(client);
  }
  // The id that the daemon gives the blocks' namespace: it has a salt of the daemon's.
  absl::Status LearnNamespace() {
    KV_ASSIGN_OR_RETURN(const auto daemon, Daemon(/*with_device=*/false));
    const std::unique_ptr<Client> client = Connect(*daemon);
    KV_RETURN_IF_ERROR(client->OpenNamespace(OpaqueNamespace("recovery", kUnit)).status());
    KV_ASSIGN_OR_RETURN(const std::string answer, client->Admin(R"({"op":"namespaces"})"));
    const std::string hex = nlohmann::json::parse(answer)["namespaces"][0]["ns"];
    for (size_t i = 0; i < ns_.bytes.size(); ++i) {
      ns_.bytes[i] = static_cast<uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
    }
    return absl::OkStatus();
  }

  absl::Status WriteSegment(Device* device, const Superblock& superblock, uint64_t key,
                            uint32_t slot) const {
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
    table.namespaces.push_back(ns_);
    for (uint64_t i = 0; i < kRecordsEach; ++i) {
      BlockRecord& record = table.records.emplace_back();
      record.key = testing::KeyOf(slot * kRecordsEach + i);
      record.key_len = 32;
      record.off4k = static_cast<uint32_t>(2 + i);
      record.stored_len = record.raw_len = kUnit;
      record.seq = slot * kRecordsEach + i + 1;
      if (i > 0) continue;
      const AlignedBuffer block(kUnit);  // the first of each segment has bytes
      testing::FillBlock(kSeed, record.key, block.span());
      record.c64_stored = record.c64_raw =
          BlockChecksum(ChecksumSeed(ns_, record.key, kUnit), block.data(), kUnit);
      KV_RETURN_IF_ERROR(
          WriteNow(device, IoClass::kFlush, at + record.off4k * kUnit, block.span()));
    }
    const AlignedBuffer footer((TablePages(1, kRecordsEach) + 1) * kUnit);
    EncodeFooter(&table, key, footer.span());
    return WriteNow(device, IoClass::kFlush, at + kSegment - footer.size(), footer.span());
  }

  std::string folder_;
  NamespaceId ns_;
};

// Each start gives three rows.
void DaemonRows(BenchTable* table, const RecoveryBench& bench, const std::string& source,
                bool loses_catalogue, double complete_max) {
  std::vector<RecoveryBench::Times> starts;
  const auto row = [&](const char* what, double RecoveryBench::Times::*time,
                       std::optional<double> gate) {
    size_t round = 0;
    table->Measure({.name = "recovery/daemon/" + source + "/" + what,
                    .unit = "s",
                    .gate = gate,
                    .measure =
                        [&] {
                          if (round == starts.size()) {
                            starts.push_back(bench.StartDaemon(loses_catalogue));
                          }
                          return starts[round++].*time;
                        },
                    .rounds = 3});
  };
  row("ready", &RecoveryBench::Times::ready, std::nullopt);
  row("first_hit", &RecoveryBench::Times::first_hit, 1.0);
  row("complete", &RecoveryBench::Times::complete, complete_max);
}

void Run(BenchTable* table) {
  const std::string footers = "recovery/4M_blocks/from_footers";
  const std::string catalogue = "recovery/4M_blocks/from_catalogue";
  const std::string daemon = "recovery/daemon";
  if (!table->Wants(footers) && !table->Wants(catalogue) && !table->Wants(daemon)) return;
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
  if (!table->Wants(daemon)) return;
  bench.StartDaemon(/*loses_catalogue=*/true);
  DaemonRows(table, bench, "from_catalogue", /*loses_catalogue=*/false, 3);
  DaemonRows(table, bench, "from_footers", /*loses_catalogue=*/true, 4);
}

KVARVE_BENCH_SUITE(recovery, "a start with 4,000,000 blocks on the device", Run);

}  // namespace
}  // namespace kvarve::perf
