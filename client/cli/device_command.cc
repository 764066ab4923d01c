// kvarve device: makes devices of the NVMe tier and looks into them, without a daemon; adds them to
// a running one and takes them away.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>

#include "absl/strings/str_format.h"
#include "client/cli/context.h"
#include "client/cli/output.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/catalogue/catalogue.h"
#include "storage/io/open_device.h"
#include "storage/segment/device_format.h"
#include "storage/segment/segment_log.h"

namespace kvarve::cli {
namespace {

// How far something is, on one line of standard error while that is a terminal.
class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)) {}
  ~Progress() {
    if (shown_ >= 0) std::fputs("\n", stderr);
  }
  void At(uint64_t done, uint64_t total) {
    const int percent = total == 0 ? 100 : static_cast<int>(done * 100 / total);
    if (percent == shown_ || ::isatty(STDERR_FILENO) == 0) return;
    shown_ = percent;
    constexpr int kWidth = 40;
    const int full = percent * kWidth / 100;
    std::fprintf(stderr, "\r%s [%s%s] %3d %%", what_.c_str(), std::string(full, '#').c_str(),
                 std::string(kWidth - full, '.').c_str(), percent);
    std::fflush(stderr);
  }

 private:
  const std::string what_;
  int shown_ = -1;
};

struct FormatFlags {
  std::string path, size, segment;
  bool force = false, quick = false;
};

int Format(const Context& context, const FormatFlags& flags) {
  FormatOptions options;
  if (!flags.size.empty()) {
    const auto bytes = ParseBytes(flags.size);
    if (!bytes.ok()) return ReportUsage(context, "--size must be a size, for example 100GiB");
    options.bytes = *bytes;
  }
  if (options.bytes > 0) options.segment_bytes = SegmentBytesFor(options.bytes);
  if (!flags.segment.empty()) {
    const auto segment = ParseBytes(flags.segment);
    if (!segment.ok()) return ReportUsage(context, "--segment must be a size, for example 256MiB");
    options.segment_bytes = *segment;
  }
  options.force = flags.force;
  options.overwrite = !flags.quick;
  Progress progress("writing");
  options.progress = [&](uint64_t done, uint64_t total) { progress.At(done, total); };
  const absl::StatusOr<Superblock> made = FormatDevice(flags.path, options);
  if (!made.ok()) return Report(context, made.status());
  if (context.json) {
    PrintJson({{"path", flags.path},
               {"uuid", UuidText(made->uuid)},
               {"segments", made->slots},
               {"segment_bytes", made->segment_bytes}});
  } else {
    Print(absl::StrFormat("%s: %d segments of %s, uuid %s\n", flags.path, made->slots,
                          FormatBytes(made->segment_bytes), UuidText(made->uuid)));
  }
  return kExitGood;
}

// Counts what a log tells of a device; keeps nothing, moves nothing.
class Lister final : public LogOwner {
 public:
  void OnRecovered(const SegmentTable& table) override {
    tables.push_back(table);
    if (progress) progress(tables.size());
    for (const BlockRecord& record : table.records) {
      blocks += record.is_erase() ? 0 : 1;
      bytes += record.stored_len;
    }
  }

  std::vector<SegmentTable> tables;
  uint64_t blocks = 0, bytes = 0;
  std::function<void(size_t)> progress;  // told how many tables there are
};

// A device as a daemon sees it at its start, with everything that it has listed. The daemon's lock
// keeps out whoever else has it open.
struct OpenLog {
  std::unique_ptr<Device> device;
  std::unique_ptr<Catalogue> catalogue = NewMemoryCatalogue();
  Lister lister;
  std::unique_ptr<SegmentLog> log;
};

absl::StatusOr<std::unique_ptr<OpenLog>> OpenLogOf(const std::string& path) {
  auto open = std::make_unique<OpenLog>();
  KV_ASSIGN_OR_RETURN(open->device, OpenDevice(path, DeviceOptions()));
  KV_ASSIGN_OR_RETURN(open->log, SegmentLog::Open(open->device.get(), open->catalogue.get(),
                                                  &open->lister, LogOptions()));
  const LogStats found = open->log->Stats();
  uint64_t segments = 0;
  for (int i = 0; i < kSlotStates; ++i) {
    segments += i == static_cast<int>(SlotState::kFree) ? 0 : found.slots[i];
  }
  Progress progress("reading");
  open->lister.progress = [&](size_t done) { progress.At(std::min(done, segments), segments); };
  KV_RETURN_IF_ERROR(open->log->Recover());
  open->lister.progress = nullptr;
  return open;
}

int Inspect(const Context& context, const std::string& path) {
  const auto open = OpenLogOf(path);
  if (!open.ok()) return Report(context, open.status());
  const Superblock& superblock = (*open)->log->superblock();
  const LogStats stats = (*open)->log->Stats();
  Json slots = Json::object();
  for (int i = 0; i < kSlotStates; ++i) {
    if (stats.slots[i] > 0) {
      slots[std::string(SlotStateName(static_cast<SlotState>(i)))] = stats.slots[i];
    }
  }
  const Lister& lister = (*open)->lister;
  if (context.json) {
    PrintJson({{"path", path},
               {"uuid", UuidText(superblock.uuid)},
               {"epoch", superblock.epoch},
               {"segment_bytes", superblock.segment_bytes},
               {"slots", superblock.slots},
               {"slot_states", slots},
               {"blocks", lister.blocks},
               {"bytes", lister.bytes}});
    return kExitGood;
  }
  std::vector<std::pair<std::string, std::string>> pairs = {
      {"uuid", UuidText(superblock.uuid)},
      {"starts", absl::StrFormat("%d", superblock.epoch)},
      {"segments",
       absl::StrFormat("%d of %s", superblock.slots, FormatBytes(superblock.segment_bytes))}};
  for (const auto& [state, count] : slots.items()) {
    pairs.emplace_back("  " + state, CountText(count.get<uint64_t>()));
  }
  pairs.emplace_back("blocks", CountText(lister.blocks));
  pairs.emplace_back("bytes", FormatBytes(lister.bytes));
  Print(PairsText(pairs));
  return kExitGood;
}

int Scrub(const Context& context, const std::string& path) {
  const auto open = OpenLogOf(path);
  if (!open.ok()) return Report(context, open.status());
  SegmentLog& log = *(*open)->log;
  const uint64_t segments = log.Stats().slots[static_cast<int>(SlotState::kSealed)];
  {
    Progress progress("verifying");
    uint64_t done = 0;
    for (uint64_t id = log.Scrub(0); id != 0; id = log.Scrub(id)) progress.At(++done, segments);
  }
  const LogStats stats = log.Stats();
  if (context.json) {
    PrintJson({{"path", path},
               {"segments", segments},
               {"verified_bytes", stats.scrubbed_bytes},
               {"failed_blocks", stats.scrub_failures}});
  } else {
    Print(absl::StrFormat("%d sealed segments, %s verified, %d blocks failed\n", segments,
                          FormatBytes(stats.scrubbed_bytes), stats.scrub_failures));
  }
  return stats.scrub_failures == 0 ? kExitGood : kExitProblem;
}

int DumpSegment(const Context& context, const std::string& path, uint64_t segment) {
  const auto open = OpenLogOf(path);
  if (!open.ok()) return Report(context, open.status());
  const std::vector<SegmentTable>& tables = (*open)->lister.tables;
  if (segment == 0) {
    Table table({"segment", "slot", "blocks", "bytes", "opened"});
    Json list = Json::array();
    for (const SegmentTable& of : tables) {
      const SegmentFacts& facts = of.facts;
      table.Add({absl::StrFormat("%d", facts.segment_id), absl::StrFormat("%d", facts.slot),
                 CountText(of.records.size()), FormatBytes(facts.live_bytes),
                 absl::StrFormat("%d", facts.opened_at)});
      list.push_back({{"segment", facts.segment_id},
                      {"slot", facts.slot},
                      {"blocks", of.records.size()},
                      {"bytes", facts.live_bytes},
                      {"opened_at", facts.opened_at}});
    }
    if (context.json) PrintJson(list);
    if (!context.json) Print(table.Text());
    return kExitGood;
  }
  const auto of = std::find_if(tables.begin(), tables.end(), [&](const SegmentTable& table) {
    return table.facts.segment_id == segment;
  });
  if (of == tables.end()) {
    return Report(context, absl::NotFoundError("no such segment; without a number all are listed"));
  }
  Table table({"page", "bytes", "depth", "hits", "seq", "namespace", "key"}, /*left=*/true);
  Json list = Json::array();
  for (const BlockRecord& record : of->records) {
    const std::string ns = ToHex(of->namespaces[record.ns_ref].bytes);
    const std::string key = ToHex(std::span(record.key.bytes).first(record.key_len));
    table.Add({absl::StrFormat("%d", record.off4k), absl::StrFormat("%d", record.stored_len),
               absl::StrFormat("%d", record.depth()), absl::StrFormat("%d", record.hits),
               absl::StrFormat("%d", record.seq), ns, record.is_erase() ? "(erase)" : key});
    list.push_back({{"page", record.off4k},
                    {"bytes", record.stored_len},
                    {"block_bytes", record.raw_len},
                    {"representation", record.repr},
                    {"depth", record.depth()},
                    {"hits", record.hits},
                    {"seq", record.seq},
                    {"namespace", ns},
                    {"key", key},
                    {"erase", record.is_erase()}});
  }
  if (context.json) PrintJson(list);
  if (!context.json) Print(table.Text());
  return kExitGood;
}

int Change(const Context& context, const char* op, const std::string& path) {
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(path, error).string();
  const absl::StatusOr<Json> answer = Ask(context, {{"op", op}, {"path", absolute}});
  if (!answer.ok()) return Report(context, answer.status());
  if (context.json) {
    PrintJson(*answer);
    return kExitGood;
  }
  Table table({"device", "state", "size", "backend"}, /*left=*/true);
  for (const Json& device : answer->value("devices", Json::array())) {
    table.Add({TextOf(device, "path"), TextOf(device, "state"),
               FormatBytes(device.value("capacity_bytes", uint64_t{0})),
               TextOf(device, "backend")});
  }
  Print(table.Text());
  return kExitGood;
}

}  // namespace

void AddDeviceCommand(CLI::App* app, Context* context) {
  CLI::App* const device =
      app->add_subcommand("device", "Makes devices of the NVMe tier and looks into them");
  device->require_subcommand(1);

  CLI::App* const format = device->add_subcommand("format", "Makes a file or block device ours");
  const auto flags = std::make_shared<FormatFlags>();
  format->add_option("PATH", flags->path, "File or block device")->required();
  format->add_option("--size", flags->size, "Of a file, for example 100GiB");
  format->add_option("--segment", flags->segment,
                     "Of a segment; default: 256MiB, less where --size has no room for eight");
  format->add_flag("--force", flags->force, "Even if it holds something that is not ours");
  format->add_flag("--quick", flags->quick, "Without writing every page once: slower at first");
  format->callback([=] { context->command = [=] { return Format(*context, *flags); }; });

  const auto path = std::make_shared<std::string>();
  const auto with_path = [&](const char* name, const char* help, auto run) {
    CLI::App* const command = device->add_subcommand(name, help);
    command->add_option("PATH", *path, "The device")->required();
    command->callback([=] { context->command = [=] { return run(*context, *path); }; });
    return command;
  };
  with_path("inspect", "What a device has, while no daemon uses it", Inspect);
  with_path("scrub", "Verifies every sealed block, while no daemon uses it", Scrub);
  const auto segment = std::make_shared<uint64_t>(0);
  with_path(
      "dump-segment", "Lists segments, or the blocks of one, while no daemon uses it",
      [segment](const Context& of, const std::string& at) { return DumpSegment(of, at, *segment); })
      ->add_option("SEGMENT", *segment, "Its number; none: all are listed");
  with_path("add", "Adds a device to the running daemon",
            [](const Context& of, const std::string& at) { return Change(of, "device_add", at); });
  with_path(
      "remove", "Takes a device from the running daemon; what it has stays on it",
      [](const Context& of, const std::string& at) { return Change(of, "device_remove", at); });
}

}  // namespace kvarve::cli
