// events: what is stored, removed or moved of one's tenant, of a daemon's gRPC endpoint.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <thread>

#include "absl/strings/str_format.h"
#include "client/cli/context.h"
#include "client/cli/output.h"
#include "client/cpp/backoff.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::cli {
namespace {

constexpr int64_t kWaitNanos = 200'000'000;  // and then looks whether it was interrupted
constexpr int64_t kFirstPauseNanos = 50'000'000, kLongestPauseNanos = 2'000'000'000;
constexpr int64_t kNoEndNanos = int64_t{365} * 24 * 3600 * 1'000'000'000;

volatile std::sig_atomic_t is_interrupted = 0;

// The first signal ends the watch, the next one the process.
void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = [](int) { is_interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

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

// Prints what comes from `cursor` on, and moves it behind that; until interrupted, or until there.
absl::Status Watch(const Context& context, Client* client, std::optional<EventCursor> until,
                   EventCursor* cursor) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<EventStream> watch,
                      client->WatchEvents(kNoEndNanos, *cursor));
  do {
    KV_ASSIGN_OR_RETURN(const EventBatch batch, watch->Next(kWaitNanos));
    for (const BlockEvent& event : batch.events) PrintEvent(context, event, batch.next.incarnation);
    *cursor = batch.next;
  } while (!is_interrupted && (!until || cursor->sequence < until->sequence));
  return absl::OkStatus();
}

// After `missed`: on from where the daemon can tell, which is from its first event on when it was
// started again.
absl::Status SkipMissed(const Context& context, Client* client, int64_t timeout_nanos,
                        const absl::Status& missed, EventCursor* cursor) {
  KV_ASSIGN_OR_RETURN(const EventCursor latest, LatestOf(client, timeout_nanos));
  const bool is_another_life = latest.incarnation != cursor->incarnation;
  *cursor = is_another_life ? EventCursor{latest.incarnation, 1} : latest;
  if (context.json) {
    PrintJson({{"cursor", TextOf(*cursor)}, {"kind", "missed"}, {"message", missed.message()}});
  } else {
    std::fprintf(stderr, "kvarve: %s; goes on at %s\n", std::string(missed.message()).c_str(),
                 TextOf(*cursor).c_str());
  }
  return absl::OkStatus();
}

// Whether it is worth trying again.
bool Passes(const absl::Status& status) {
  return status.ok() || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

// Ends early when interrupted.
void Pause(int64_t nanos) {
  for (; nanos > 0 && !is_interrupted; nanos -= kWaitNanos) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(nanos, kWaitNanos)));
  }
}

// Until interrupted, or refused for good.
absl::Status Follow(const Context& context, Client* client, int64_t timeout_nanos,
                    EventCursor* cursor) {
  client::Backoff pauses(kFirstPauseNanos, kLongestPauseNanos);
  while (true) {
    const EventCursor before = *cursor;
    absl::Status status = Watch(context, client, std::nullopt, cursor);
    if (absl::IsOutOfRange(status)) {
      status = SkipMissed(context, client, timeout_nanos, status, cursor);
    }
    if (is_interrupted) return absl::OkStatus();
    if (!Passes(status)) return status;
    if (*cursor != before) pauses.Reset();
    Pause(pauses.Next());
    if (is_interrupted) return absl::OkStatus();
  }
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
  if (!flags.follow) {
    const absl::Status told = Watch(context, client->get(), *latest, &from);
    if (told.ok() && !context.json) Print("next: --since " + TextOf(from) + "\n");
    return Report(context, told);
  }
  CatchSignals();
  const absl::Status ended = Follow(context, client->get(), *timeout, &from);
  std::fprintf(stderr, "next: --since %s\n", TextOf(from).c_str());
  return Report(context, ended);
}

}  // namespace

void AddEventsCommand(CLI::App* app, Context* context) {
  CLI::App* const events = app->add_subcommand(
      "events",
      "What is stored, removed or moved of this client's tenant, one line each; of a "
      "remote endpoint");
  const auto flags = std::make_shared<EventsFlags>();
  events->add_flag(
      "--follow", flags->follow,
      "Go on until interrupted, also with a daemon that is started again; then say where a "
      "later --since goes on");
  events->add_option("--since", flags->since,
                     "First event wanted: a number of the daemon's present life, or a cursor, "
                     "INCARNATION:SEQUENCE, as it is printed; else from now on");
  events->callback([=] { context->command = [=] { return Events(*context, *flags); }; });
}

}  // namespace kvarve::cli
