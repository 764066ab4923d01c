// replay: a trace through the policies that the daemon runs, over a sweep of capacities. No daemon.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/cli/context.h"
#include "client/cli/output.h"
#include "client/cli/replay_report.h"
#include "client/cli/trace_file.h"
#include "storage/base/units.h"
#include "storage/policy/access_log.h"
#include "storage/policy/replay.h"
#include "storage/policy/yardsticks.h"

namespace kvarve::cli {
namespace {

struct ReplayFlags {
  std::string trace, html, record;
  std::string policy = "hazard";
  std::vector<double> percents = {0.5, 1, 2, 5, 10, 20, 40};
  double nvme_percent = 0;
  double drive_writes_per_day = 0;
  double burst_seconds = 6 * 60 * 60;
  // Llama 3.1 8B in bf16 on a GPU that sustains 400 TFLOP/s.
  uint32_t block_tokens = 0;  // 0: what the trace says
  uint32_t layers = 32, kv_heads = 8, head_dim = 128, element_bytes = 2;
  double parameters = 8.03e9;
  double gpu_tflops = 400;
};

uint64_t BlockBytes(const Trace& trace, const ReplayFlags& flags) {
  uint64_t tokens = 0;
  for (const TraceRequest& request : trace.requests) tokens += request.prompt_tokens;
  const double per_block =
      flags.block_tokens > 0 ? flags.block_tokens
      : tokens > 0
          ? std::max(1., static_cast<double>(tokens) / static_cast<double>(trace.references))
          : 16;
  return static_cast<uint64_t>(per_block * 2 * flags.layers * flags.kv_heads * flags.head_dim *
                               flags.element_bytes);
}

ReplayRow RowOf(const Trace& trace, const ReplayFlags& flags, double share, uint64_t block_bytes) {
  ReplayRow row;
  row.share = share;
  row.host_blocks = std::max<uint64_t>(1, static_cast<uint64_t>(share * trace.unique_ids));
  row.host_bytes = row.host_blocks * block_bytes;
  ReplayOptions options;
  options.host_blocks = row.host_blocks;
  options.nvme.blocks = static_cast<uint64_t>(flags.nvme_percent / 100 * trace.unique_ids);
  options.nvme.block_bytes = block_bytes;
  options.nvme.budget.capacity_bytes = options.nvme.blocks * block_bytes;
  options.nvme.budget.drive_writes_per_day = flags.drive_writes_per_day;
  options.nvme.budget.burst_seconds = static_cast<int64_t>(flags.burst_seconds);
  const auto policy = NewEvictionPolicy(flags.policy);
  const ReplayResult result = Replay(trace, options, policy.get());
  row.hit_ratio = result.hit_ratio();
  row.host_hit_ratio = ReplayResult::Ratio(result.host_hit_blocks, result.blocks);
  row.first_half = result.early_hit_ratio();
  row.second_half = result.late_hit_ratio();
  row.lru = LruHitRatio(trace, row.host_blocks, /*leaf_first=*/false);
  row.s3fifo = S3FifoHitRatio(trace, row.host_blocks);
  row.belady = BeladyHitRatio(trace, row.host_blocks);
  const auto bytes = static_cast<double>(block_bytes);
  row.loaded_bytes = static_cast<double>(result.hit_blocks) * bytes;
  row.nvme_written_bytes = static_cast<double>(result.nvme.written_blocks) * bytes;
  const double days = trace.requests.back().seconds / 86400;
  if (options.nvme.blocks > 0 && days > 0) {
    row.drive_writes_per_day = static_cast<double>(result.nvme.written_blocks) /
                               static_cast<double>(options.nvme.blocks) / days;
  }
  row.saved_seconds =
      static_cast<double>(result.hit_tokens) * 2 * flags.parameters / (flags.gpu_tflops * 1e12);
  return row;
}

void Progress(size_t done, size_t all) {
  if (::isatty(STDERR_FILENO) == 0) return;
  constexpr size_t kCells = 30;
  const size_t filled = done * kCells / all;
  std::fprintf(stderr, "\r[%s%s] %zu/%zu", std::string(filled, '#').c_str(),
               std::string(kCells - filled, '.').c_str(), done, all);
  if (done == all) std::fprintf(stderr, "\r%*s\r", 50, "");
}

Json JsonOf(const ReplayReport& report) {
  Json rows = Json::array();
  for (const ReplayRow& row : report.rows) {
    rows.push_back({{"share", row.share},
                    {"host_blocks", row.host_blocks},
                    {"host_bytes", row.host_bytes},
                    {"hit_ratio", row.hit_ratio},
                    {"host_hit_ratio", row.host_hit_ratio},
                    {"first_half_hit_ratio", row.first_half},
                    {"second_half_hit_ratio", row.second_half},
                    {"lru_hit_ratio", row.lru},
                    {"s3fifo_hit_ratio", row.s3fifo},
                    {"belady_hit_ratio", row.belady},
                    {"loaded_bytes", row.loaded_bytes},
                    {"nvme_written_bytes", row.nvme_written_bytes},
                    {"drive_writes_per_day", row.drive_writes_per_day},
                    {"saved_prefill_seconds", row.saved_seconds}});
  }
  return {{"trace", report.trace},
          {"policy", report.policy},
          {"requests", report.requests},
          {"references", report.references},
          {"unique_blocks", report.unique_blocks},
          {"span_seconds", report.span_seconds},
          {"block_bytes", report.block_bytes},
          {"nvme_share", report.nvme_share},
          {"rows", std::move(rows)}};
}

std::string TextOfReport(const ReplayReport& report) {
  Table table({"share", "host", "hits", "1st half", "2nd half", "in host", "LRU", "S3-FIFO",
               "Belady", "saved s", "DWPD"});
  for (const ReplayRow& row : report.rows) {
    table.Add({absl::StrFormat("%.3g %%", row.share * 100), FormatBytes(row.host_bytes),
               absl::StrFormat("%.4f", row.hit_ratio), absl::StrFormat("%.4f", row.first_half),
               absl::StrFormat("%.4f", row.second_half),
               absl::StrFormat("%.4f", row.host_hit_ratio), absl::StrFormat("%.4f", row.lru),
               absl::StrFormat("%.4f", row.s3fifo), absl::StrFormat("%.4f", row.belady),
               absl::StrFormat("%.0f", row.saved_seconds),
               absl::StrFormat("%.2f", row.drive_writes_per_day)});
  }
  return table.Text();
}

// Empty: all numbers mean something. Written so that what is no number is wrong, too.
std::string WrongNumber(const ReplayFlags& flags) {
  const auto is_percent = [](double percent) { return percent > 0 && percent <= 100; };
  if (flags.percents.empty() || !std::ranges::all_of(flags.percents, is_percent))
    return "--host-percent: shares are above 0 and at most 100 %";
  if (flags.nvme_percent != 0 && !is_percent(flags.nvme_percent))
    return "--nvme-percent: a share is at most 100 %, or 0";
  if (!(flags.drive_writes_per_day >= 0 && flags.drive_writes_per_day <= 1e6))
    return "--dwpd: drive writes a day are 0 (no limit) or more";
  if (!(flags.burst_seconds > 0 && flags.burst_seconds <= 1e9))
    return "--burst-seconds: seconds are above 0";
  if (!(flags.gpu_tflops > 0 && flags.gpu_tflops <= 1e9) ||
      !(flags.parameters > 0 && flags.parameters <= 1e18)) {
    return "--gpu-tflops, --parameters: both are above 0";
  }
  for (const uint32_t of : {flags.layers, flags.kv_heads, flags.head_dim, flags.element_bytes}) {
    if (of == 0 || of > 1 << 16)
      return "--layers, --kv-heads, ...: a model has at least one of each";
  }
  return "";
}

int Run(const Context& context, const ReplayFlags& flags) {
  if (NewEvictionPolicy(flags.policy) == nullptr)
    return ReportUsage(context, "no policy '" + flags.policy + "': lru, s3fifo or hazard");
  if (const std::string wrong = WrongNumber(flags); !wrong.empty())
    return ReportUsage(context, wrong);
  const auto trace = ReadTraceFile(flags.trace);
  if (!trace.ok()) return Report(context, trace.status());
  if (!flags.record.empty()) {
    std::ofstream csv(flags.record);
    csv << TraceCsv(*trace);
    csv.close();
    if (!csv) return Report(context, absl::UnavailableError("cannot write " + flags.record));
    Print(absl::StrFormat("%s: %d requests for %d blocks, %d of them unique\n", flags.record,
                          trace->requests.size(), trace->references, trace->unique_ids));
    return kExitGood;
  }
  ReplayReport report{.trace = flags.trace,
                      .policy = flags.policy,
                      .requests = trace->requests.size(),
                      .references = trace->references,
                      .unique_blocks = trace->unique_ids,
                      .span_seconds = trace->requests.back().seconds,
                      .block_bytes = BlockBytes(*trace, flags),
                      .nvme_share = flags.nvme_percent / 100};
  for (const double percent : flags.percents) {
    report.rows.push_back(RowOf(*trace, flags, percent / 100, report.block_bytes));
    Progress(report.rows.size(), flags.percents.size());
  }
  if (!flags.html.empty()) {
    std::ofstream page(flags.html);
    page << ReplayPage(report);
    page.close();
    if (!page) return Report(context, absl::UnavailableError("cannot write " + flags.html));
  }
  if (context.json) {
    PrintJson(JsonOf(report));
  } else {
    Print(TextOfReport(report));
  }
  return kExitGood;
}

}  // namespace

void AddReplayCommand(CLI::App* app, Context* context) {
  CLI::App* const replay = app->add_subcommand(
      "replay", "Hit ratios of a trace over a sweep of capacities, by the daemon's own policies");
  const auto flags = std::make_shared<ReplayFlags>();
  replay
      ->add_option("trace", flags->trace,
                   "Mooncake or LMCache JSON lines, CSV, or what a daemon recorded (record.path)")
      ->required();
  replay->add_option("--record", flags->record,
                     "Only writes the trace to this file, as CSV: what a daemon recorded as others "
                     "can read it");
  replay->add_option("--policy", flags->policy, "lru, s3fifo or hazard")->capture_default_str();
  replay
      ->add_option("--host-percent", flags->percents, "Host tier as percents of the unique blocks")
      ->delimiter(',')
      ->capture_default_str();
  replay->add_option("--nvme-percent", flags->nvme_percent, "NVMe tier likewise; 0: none")
      ->capture_default_str();
  replay
      ->add_option("--dwpd", flags->drive_writes_per_day,
                   "Drive writes a day that may be used; 0: no limit")
      ->capture_default_str();
  replay->add_option("--burst-seconds", flags->burst_seconds, "What the write budget can save up")
      ->capture_default_str();
  replay->add_option("--html", flags->html, "Writes a page with plots, too");
  replay->add_option("--block-tokens", flags->block_tokens, "0: what the trace says")
      ->capture_default_str();
  replay->add_option("--layers", flags->layers, "Of the model")->capture_default_str();
  replay->add_option("--kv-heads", flags->kv_heads, "Of the model")->capture_default_str();
  replay->add_option("--head-dim", flags->head_dim, "Of the model")->capture_default_str();
  replay->add_option("--element-bytes", flags->element_bytes, "Of its KV")->capture_default_str();
  replay->add_option("--parameters", flags->parameters, "Of the model")->capture_default_str();
  replay->add_option("--gpu-tflops", flags->gpu_tflops, "That prefill sustains")
      ->capture_default_str();
  replay->callback([=] { context->command = [=] { return Run(*context, *flags); }; });
}

}  // namespace kvarve::cli
