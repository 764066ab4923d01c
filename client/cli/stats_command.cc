// stats: what happened since the daemon's start.
#include <time.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/cli/context.h"
#include "client/cli/output.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::cli {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;

std::string Bytes(const Json& json, const char* name) { return FormatBytes(Number(json, name)); }
std::string Count(const Json& json, const char* name) { return CountText(Number(json, name)); }

// What the NVMe tier did; empty without one.
std::string NvmeStatsText(const Json& s) {
  if (s.empty()) return "";
  std::vector<std::pair<std::string, std::string>> pairs = {
      {"NVMe blocks written", Count(s, "written_blocks") + " (" + Bytes(s, "written_bytes") + ")"},
      {"  shed, to be tried again", Count(s, "shed_blocks")},
      {"NVMe blocks loaded", Count(s, "loaded_blocks") + " (" + Bytes(s, "loaded_bytes") + ")"},
      {"  loads joined", Count(s, "joined_loads")},
      {"  failed", Count(s, "load_failed_blocks")},
      {"  without room", Count(s, "load_no_room_blocks")}};
  // items() keeps no copy of what it goes through.
  const Json not_admitted = s.value("not_admitted_blocks", Json::object());
  const Json given_up = s.value("given_up_blocks", Json::object());
  for (const auto& [reason, count] : not_admitted.items()) {
    pairs.emplace_back("NVMe not admitted: " + reason, CountText(count));
  }
  for (const auto& [reason, count] : given_up.items()) {
    pairs.emplace_back("NVMe given up: " + reason, CountText(count));
  }
  return "\n" + PairsText(pairs);
}

// Of one tenant: what a daemon says to who does not administer it, under the names of its own
// statistics.
absl::StatusOr<Json> TenantStatsJson(Client* client) {
  KV_ASSIGN_OR_RETURN(const TenantStats stats, client->ReadTenantStats());
  Json namespaces = Json::array();
  for (const TenantNamespace& ns : stats.namespaces) {
    namespaces.push_back({{"ns", ToHex(ns.id.bytes)},
                          {"tenant", ns.tenant},
                          {"model", ns.model},
                          {"block_bytes", ns.block_bytes},
                          {"key_bytes", ns.key_bytes}});
  }
  return Json{{"of", "tenant"},
              {"version", stats.daemon_version},
              {"incarnation", absl::StrFormat("%016x", stats.incarnation)},
              {"capacity_bytes", stats.capacity_bytes},
              {"chunk_bytes", stats.chunk_bytes},
              {"used_bytes", stats.used_bytes},
              {"leased_bytes", stats.leased_bytes},
              {"blocks", stats.blocks},
              {"lookups", stats.lookups},
              {"lookup_keys", stats.lookup_keys},
              {"hit_blocks", stats.hit_blocks},
              {"miss_blocks", stats.miss_blocks},
              {"hit_bytes", stats.hit_bytes},
              {"put_blocks", {{"stored", stats.stored_blocks}}},
              {"put_bytes", stats.stored_bytes},
              {"evicted_blocks", stats.evicted_blocks},
              {"namespaces", std::move(namespaces)}};
}

// The node's where it is administered, else the caller's tenant's.
absl::StatusOr<Json> AskStats(Client* client) {
  absl::StatusOr<Json> stats = Ask(client, {{"op", "stats"}});
  if (client->is_remote() && absl::IsUnimplemented(stats.status())) return TenantStatsJson(client);
  return stats;
}

std::string TenantStatsText(const Json& s) {
  const uint64_t hits = Number(s, "hit_blocks"), asked = hits + Number(s, "miss_blocks");
  return PairsText({{"of", "this client's tenant"},
                    {"blocks", Count(s, "blocks") + " (" + Bytes(s, "used_bytes") + ")"},
                    {"leased", Bytes(s, "leased_bytes")},
                    {"namespaces", CountText(s.value("namespaces", Json::array()).size())},
                    {"lookups", Count(s, "lookups") + " (" + Count(s, "lookup_keys") + " keys)"},
                    {"blocks read", CountText(hits) + " of " + CountText(asked) + " (" +
                                        PercentText(hits, asked) + ")"},
                    {"bytes read", Bytes(s, "hit_bytes")},
                    {"blocks stored", Count(s.value("put_blocks", Json::object()), "stored") +
                                          " (" + Bytes(s, "put_bytes") + ")"},
                    {"blocks evicted", Count(s, "evicted_blocks")}});
}

std::string StatsText(const Json& s) {
  if (s.contains("of")) return TenantStatsText(s);
  const uint64_t hits = Number(s, "hit_blocks"), asked = hits + Number(s, "miss_blocks");
  const Json puts = s.value("put_blocks", Json::object());
  std::vector<std::pair<std::string, std::string>> pairs = {
      {"lookups", Count(s, "lookups") + " (" + Count(s, "lookup_keys") + " keys)"},
      {"blocks read",
       CountText(hits) + " of " + CountText(asked) + " (" + PercentText(hits, asked) + ")"},
      {"bytes read", Bytes(s, "hit_bytes")},
      {"  in place", Bytes(s, "granted_bytes")},
      {"  copied", Bytes(s, "copied_bytes")},
      {"bytes stored", Bytes(s, "put_bytes")},
  };
  for (const auto& [result, count] : puts.items())
    pairs.emplace_back("blocks put: " + result, CountText(count));
  pairs.insert(pairs.end(), {{"put conflicts", Count(s, "put_conflicts")},
                             {"blocks evicted", Count(s, "evicted_blocks")},
                             {"blocks reclaimed", Count(s, "reclaimed_blocks")},
                             {"blocks invalidated", Count(s, "invalidated_blocks")},
                             {"blocks corrupt", Count(s, "corrupt_blocks")},
                             {"lease cap refusals", Count(s, "lease_cap_refusals")},
                             {"holds expired", Count(s, "holds_expired")},
                             {"malformed messages", Count(s, "malformed_messages")},
                             {"slow requests", Count(s, "slow_requests")}});
  std::string text = PairsText(pairs) + NvmeStatsText(s.value("nvme", Json::object()));
  const Json requests = s.value("requests", Json::object());
  if (!requests.empty()) {
    Table table({"request", "ok", "failed", "mean"});
    for (const auto& [type, stats] : requests.items()) {
      table.Add(
          {type, Count(stats, "ok"), Count(stats, "failed"), TextOf(stats, "mean_us") + " us"});
    }
    text += "\n" + table.Text();
  }
  return text;
}

// One line of `stats --watch`: what happened since the line before.
class Watch {
 public:
  std::string Header() const {
    return absl::StrFormat("%10s %10s %10s %12s %10s %12s %10s\n", "lookups/s", "hits/s",
                           "misses/s", "read/s", "stored/s", "written/s", "evicted/s");
  }
  std::string Line(const Json& now, double seconds) {
    const auto rate = [&](const Json& after, const Json& before, const char* name) {
      const uint64_t a = Number(after, name), b = Number(before, name);
      return static_cast<uint64_t>(static_cast<double>(a > b ? a - b : 0) / seconds);
    };
    const auto count = [&](const char* name) { return CountText(rate(now, last_, name)); };
    const auto bytes = [&](const char* name) { return FormatBytes(rate(now, last_, name)); };
    const Json none = Json::object();
    const std::string stored =
        CountText(rate(now.value("put_blocks", none), last_.value("put_blocks", none), "stored"));
    std::string line =
        absl::StrFormat("%10s %10s %10s %12s %10s %12s %10s\n", count("lookups"),
                        count("hit_blocks"), count("miss_blocks"), bytes("hit_bytes"), stored,
                        bytes("put_bytes"), count("evicted_blocks"));
    last_ = now;
    return line;
  }
  void Start(const Json& now) { last_ = now; }

 private:
  Json last_;
};

void Sleep(int64_t nanos) {
  timespec left{nanos / kNanosPerSecond, nanos % kNanosPerSecond};
  while (::nanosleep(&left, &left) != 0) {
  }
}

struct StatsFlags {
  bool watch = false;
  std::string interval = "1s";
  uint64_t count = 0;  // 0: until interrupted
};

int Stats(const Context& context, const StatsFlags& flags) {
  const absl::StatusOr<int64_t> interval = ParseDuration(flags.interval);
  if (!interval.ok() || *interval <= 0)
    return ReportUsage(context, "--interval must be a duration, for example 1s");
  const auto client = Connect(context);
  if (!client.ok()) return Report(context, client.status());
  absl::StatusOr<Json> stats = AskStats(client->get());
  if (!stats.ok()) return Report(context, stats.status());
  if (!flags.watch) {
    if (context.json) PrintJson(*stats);
    if (!context.json) Print(StatsText(*stats));
    return kExitGood;
  }
  Watch watch;
  watch.Start(*stats);
  if (!context.json) Print(watch.Header());
  for (uint64_t i = 0; flags.count == 0 || i < flags.count; ++i) {
    Sleep(*interval);
    stats = AskStats(client->get());
    if (!stats.ok()) return Report(context, stats.status());
    if (context.json) PrintJson(*stats);
    if (!context.json) Print(watch.Line(*stats, static_cast<double>(*interval) / kNanosPerSecond));
  }
  return kExitGood;
}

}  // namespace

void AddStatsCommand(CLI::App* app, Context* context) {
  CLI::App* const stats = app->add_subcommand("stats",
                                              "What happened since the daemon's start; of a "
                                              "remote endpoint of blocks, to one tenant");
  const auto watch = std::make_shared<StatsFlags>();
  stats->add_flag("--watch", watch->watch, "Print rates, one line an interval, until interrupted");
  stats->add_option("--interval", watch->interval, "With --watch: time between lines")
      ->capture_default_str();
  stats->add_option("--count", watch->count, "With --watch: end after so many lines");
  stats->callback([=] { context->command = [=] { return Stats(*context, *watch); }; });
}

}  // namespace kvarve::cli
