// events: what is stored, removed or moved of one's tenant, of a daemon's gRPC endpoint.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <span>

#include "absl/strings/str_format.h"
#include "client/cli/context.h"
#include "client/cli/output.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::cli {
namespace {

constexpr int64_t kWaitNanos = 500'000'000;
constexpr int64_t kNoEndNanos = int64_t{365} * 24 * 3600 * 1'000'000'000;

struct EventsFlags {
  bool follow = false;
  std::string since;
};

std::string TextOf(const EventCursor& cursor) {
  return absl::StrFormat("%016x:%d", cursor.incarnation, cursor.sequence);
}

template <typename Number>
bool IsNumber(std::string_view text, int base, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number, base);
  return error == std::errc() && end == text.data() + text.size();
}

// "INCARNATION:SEQUENCE" as it is printed, or a number of the daemon's present life.
std::optional<EventCursor> CursorOf(std::string_view text, uint64_t incarnation) {
  EventCursor cursor{incarnation, 0};
  if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    if (!IsNumber(text.substr(0, colon), 16, &cursor.incarnation)) return std::nullopt;
    text.remove_prefix(colon + 1);
  }
  if (!IsNumber(text, 10, &cursor.sequence) || cursor.sequence == 0) return std::nullopt;
  return cursor;
}

void PrintEvent(const Context& context, const BlockEvent& event, uint64_t incarnation) {
  const std::string kind(EventKindName(event.kind)), tier(BlockTierName(event.tier));
  const std::string key = ToHex(std::span(event.key.bytes).first(event.key_bytes));
  if (!context.json) {
    Print(absl::StrFormat("%d %-12s %s %s depth=%d %s\n", event.sequence, kind,
                          ToHex(event.ns.bytes), key, event.depth, tier));
    return;
  }
  Json json = {{"cursor", TextOf({incarnation, event.sequence + 1})},
               {"sequence", event.sequence},
               {"kind", kind},
               {"ns", ToHex(event.ns.bytes)}};
  if (event.key_bytes > 0) {
    json["key"] = key;
    json["depth"] = event.depth;
  }
  if (!tier.empty()) json["tier"] = tier;
  PrintJson(json);
}

// Where the daemon's events are now.
absl::StatusOr<EventCursor> LatestOf(Client* client, int64_t timeout_nanos) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<EventStream> watch, client->WatchEvents(timeout_nanos));
  KV_ASSIGN_OR_RETURN(const EventBatch first, watch->Next(timeout_nanos));
  return first.next;
}

absl::Status Watch(const Context& context, Client* client, const EventCursor& from,
                   std::optional<EventCursor> until) {
  const absl::StatusOr<std::unique_ptr<EventStream>> watch = client->WatchEvents(kNoEndNanos, from);
  KV_RETURN_IF_ERROR(watch.status());
  EventCursor next;
  do {
    KV_ASSIGN_OR_RETURN(const EventBatch batch, (*watch)->Next(kWaitNanos));
    for (const BlockEvent& event : batch.events) PrintEvent(context, event, batch.next.incarnation);
    next = batch.next;
  } while (!until || next.sequence < until->sequence);
  if (!context.json) Print("next: --since " + TextOf(next) + "\n");
  return absl::OkStatus();
}

int Events(const Context& context, const EventsFlags& flags) {
  if (!flags.follow && flags.since.empty()) {
    return ReportUsage(context, "say --follow for what comes, or --since for what has been");
  }
  const auto client = Connect(context);
  if (!client.ok()) return Report(context, client.status());
  const absl::StatusOr<int64_t> timeout = ParseDuration(context.timeout);
  if (!timeout.ok()) return Report(context, timeout.status());
  const absl::StatusOr<EventCursor> latest = LatestOf(client->get(), *timeout);
  if (!latest.ok()) return Report(context, latest.status());
  EventCursor from = *latest;
  if (!flags.since.empty()) {
    const std::optional<EventCursor> since = CursorOf(flags.since, latest->incarnation);
    if (!since) return ReportUsage(context, "--since is no number from 1 on, and no cursor");
    from = *since;
  }
  return Report(context, Watch(context, client->get(), from,
                               flags.follow ? std::nullopt : std::optional(*latest)));
}

}  // namespace

void AddEventsCommand(CLI::App* app, Context* context) {
  CLI::App* const events = app->add_subcommand(
      "events",
      "What is stored, removed or moved of this client's tenant, one line each; of a "
      "remote endpoint");
  const auto flags = std::make_shared<EventsFlags>();
  events->add_flag("--follow", flags->follow, "Go on until interrupted");
  events->add_option("--since", flags->since,
                     "First event wanted: a number of the daemon's present life, or a cursor, "
                     "INCARNATION:SEQUENCE, as it is printed; else from now on");
  events->callback([=] { context->command = [=] { return Events(*context, *flags); }; });
}

}  // namespace kvarve::cli
