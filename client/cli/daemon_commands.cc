// status, resize, drain, evict, invalidate, erase: what a daemon is asked about itself.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>

#include "client/cli/context.h"
#include "client/cli/output.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::cli {
namespace {

constexpr size_t kNamespacePagesMax = 64;
constexpr int64_t kNanosPerSecond = 1'000'000'000;

std::string Bytes(const Json& json, const char* name) { return FormatBytes(Number(json, name)); }
std::string Count(const Json& json, const char* name) { return CountText(Number(json, name)); }

// What the NVMe tier has; empty without one.
std::string NvmeStatusText(const Json& s) {
  if (s.empty()) return "";
  std::string text =
      "\n" + PairsText({{"NVMe blocks", Count(s, "blocks") + " (" + Bytes(s, "bytes") + ")"},
                        {"NVMe index", Bytes(s, "index_bytes")},
                        {"on its way to NVMe",
                         Bytes(s, "dirty_bytes") + " of at most " + Bytes(s, "dirty_bytes_max")}});
  Table table({"device", "state", "size", "segments", "backend", "write budget"}, /*left=*/true);
  for (const Json& device : s.value("devices", Json::array())) {
    const bool is_limited = device.contains("budget_step");
    table.Add({TextOf(device, "path"), TextOf(device, "state"), Bytes(device, "capacity_bytes"),
               Count(device, "segments_in_use"), TextOf(device, "backend"),
               is_limited ? TextOf(device, "budget_step") : "no limit"});
  }
  return text + "\n" + table.Text();
}

std::string StatusText(const Json& s) {
  // What a smaller capacity has no room for: chunks that are read in place, or mapped.
  const uint64_t leaving = Number(s, "leaving_bytes");
  const std::string over = leaving == 0 ? ""
                                        : ", " + FormatBytes(leaving) +
                                              " more than the capacity: they leave when no "
                                              "client reads or maps them any more";
  return PairsText({
             {"version", TextOf(s, "version")},
             {"incarnation", TextOf(s, "incarnation")},
             {"pid", TextOf(s, "pid")},
             {"up",
              FormatDuration(static_cast<int64_t>(Number(s, "uptime_seconds")) * kNanosPerSecond)},
             {"socket", TextOf(s, "socket")},
             {"metrics", TextOf(s, "metrics")},
             {"gRPC", TextOf(s, "rpc")},
             {"capacity", Bytes(s, "capacity_bytes")},
             {"taken from the host", Bytes(s, "chunk_bytes") + over},
             {"used", Bytes(s, "used_bytes") + " (" +
                          PercentText(Number(s, "used_bytes"), Number(s, "capacity_bytes")) + ")"},
             {"draining", Bytes(s, "draining_bytes") + " given back, and still mapped by clients"},
             {"blocks", Count(s, "blocks")},
             {"index", Bytes(s, "index_bytes")},
             {"namespaces", Count(s, "namespaces")},
             {"sessions", Count(s, "sessions")},
             {"leases", Count(s, "leases") + " (" + Bytes(s, "leased_bytes") + ")"},
             {"quarantined", Bytes(s, "quarantined_bytes")},
             {"staging", Bytes(s, "staging_bytes")},
         }) +
         NvmeStatusText(s.value("nvme", Json::object()));
}

// All namespaces, page by page.
absl::StatusOr<Json> AllNamespaces(Client* client) {
  Json all = Json::array();
  for (size_t page = 0; page < kNamespacePagesMax; ++page) {
    KV_ASSIGN_OR_RETURN(const Json answer,
                        Ask(client, {{"op", "namespaces"}, {"offset", all.size()}}));
    const auto list = answer.find("namespaces");
    if (list == answer.end() || !list->is_array() || list->empty()) break;
    for (const Json& ns : *list) all.push_back(ns);
    if (all.size() >= Number(answer, "total")) break;
  }
  return all;
}

int Status(const Context& context, bool with_namespaces) {
  const auto client = Connect(context);
  if (!client.ok()) return Report(context, client.status());
  absl::StatusOr<Json> status = Ask(client->get(), {{"op", "status"}});
  if (!status.ok()) return Report(context, status.status());
  absl::StatusOr<Json> namespaces = Json::array();
  if (with_namespaces) namespaces = AllNamespaces(client->get());
  if (!namespaces.ok()) return Report(context, namespaces.status());
  if (context.json) {
    if (with_namespaces) (*status)["namespace_list"] = *namespaces;
    PrintJson(*status);
    return kExitGood;
  }
  Print(StatusText(*status));
  if (with_namespaces) {
    Table table({"namespace", "tenant", "model", "block", "key"}, /*left=*/true);
    for (const Json& ns : *namespaces) {
      table.Add({TextOf(ns, "ns"), TextOf(ns, "tenant"), TextOf(ns, "model"),
                 Bytes(ns, "block_bytes"), TextOf(ns, "key_bytes")});
    }
    Print("\n" + table.Text());
  }
  return kExitGood;
}

int Resize(const Context& context, const std::string& capacity) {
  const absl::StatusOr<Json> answer = Ask(context, {{"op", "resize"}, {"capacity", capacity}});
  if (!answer.ok()) return Report(context, answer.status());
  if (context.json) {
    PrintJson(*answer);
    return kExitGood;
  }
  std::string text = "capacity: " + Bytes(*answer, "before_bytes") + " before, " +
                     Bytes(*answer, "capacity_bytes") + " now\n";
  if (Number(*answer, "chunk_bytes") > Number(*answer, "capacity_bytes")) {
    text +=
        Bytes(*answer, "chunk_bytes") + " are still taken: leased blocks leave with their leases\n";
  }
  Print(text);
  return kExitGood;
}

int Drain(const Context& context, bool on) {
  const absl::StatusOr<Json> answer = Ask(context, {{"op", "drain"}, {"on", on}});
  if (!answer.ok()) return Report(context, answer.status());
  if (context.json) {
    PrintJson(*answer);
  } else {
    Print(on ? "takes no new blocks from other hosts and is not ready any more; " +
                   Count(*answer, "open_streams") + " streams are open\n"
             : "serves again\n");
  }
  return kExitGood;
}

int Evict(const Context& context, const std::string& bytes, const std::string& tenant) {
  Json request = {{"op", "evict"}, {"bytes", bytes}};
  if (!tenant.empty()) request["tenant"] = tenant;
  const absl::StatusOr<Json> answer = Ask(context, request);
  if (!answer.ok()) return Report(context, answer.status());
  if (context.json) {
    PrintJson(*answer);
  } else {
    Print(Count(*answer, "evicted_blocks") + " blocks evicted, " + Bytes(*answer, "evicted_bytes") +
          "\n");
  }
  return kExitGood;
}

struct InvalidateFlags {
  std::string ns;
  std::string model;
  bool all = false;
  bool yes = false;
};

bool Confirms(const std::string& what) {
  std::fprintf(stderr, "Remove all blocks of %s? [y/N] ", what.c_str());
  std::string answer;
  return std::getline(std::cin, answer) && (answer == "y" || answer == "yes");
}

int Invalidate(const Context& context, const InvalidateFlags& flags) {
  if ((flags.ns.empty() ? 0 : 1) + (flags.model.empty() ? 0 : 1) + (flags.all ? 1 : 0) != 1) {
    return ReportUsage(context, "say what: exactly one of --ns, --model and --all");
  }
  if (flags.all && !flags.yes) {
    if (::isatty(STDIN_FILENO) == 0)
      return ReportUsage(context, "--all needs --yes when nobody can be asked");
    if (!Confirms("all namespaces")) return kExitFailed;
  }
  Json request = {{"op", "invalidate"}};
  if (flags.all) {
    request["all"] = true;
  } else if (!flags.model.empty()) {
    request["model"] = flags.model;
  } else {
    request["ns"] = flags.ns;
  }
  const absl::StatusOr<Json> answer = Ask(context, request);
  if (!answer.ok()) return Report(context, answer.status());
  if (context.json) {
    PrintJson(*answer);
  } else {
    Print(Count(*answer, "removed_blocks") + " blocks removed in " + Count(*answer, "namespaces") +
          " namespaces\n");
  }
  return kExitGood;
}

struct EraseFlags {
  std::string ns, tenant;
  bool yes = false;
};

int Erase(const Context& context, const EraseFlags& flags) {
  if (flags.ns.empty() == flags.tenant.empty()) {
    return ReportUsage(context, "say what: one of --ns and --tenant");
  }
  if (!flags.yes) {
    if (::isatty(STDIN_FILENO) == 0)
      return ReportUsage(context, "it needs --yes when nobody can be asked");
    const std::string what = flags.ns.empty() ? "tenant " + flags.tenant : "namespace " + flags.ns;
    if (!Confirms(what)) return kExitFailed;
  }
  Json request = {{"op", "erase"}};
  request[flags.ns.empty() ? "tenant" : "ns"] = flags.ns.empty() ? flags.tenant : flags.ns;
  const absl::StatusOr<Json> answer = Ask(context, request);
  if (!answer.ok()) return Report(context, answer.status());
  if (context.json) {
    PrintJson(*answer);
    return kExitGood;
  }
  std::string text = Count(*answer, "removed_blocks") + " blocks erased in " +
                     Count(*answer, "namespaces") + " namespaces, in memory and on devices\n";
  if (Number(*answer, "namespaces_of_unknown_tenant") > 0) {
    text += Count(*answer, "namespaces_of_unknown_tenant") +
            " namespaces on devices are of tenants that are not known before a client opens them\n";
  }
  Print(text);
  return kExitGood;
}

}  // namespace

void AddDaemonCommands(CLI::App* app, Context* context) {
  CLI::App* const status = app->add_subcommand("status", "What the daemon is and holds");
  const auto with_namespaces = std::make_shared<bool>(false);
  status->add_flag("--namespaces", *with_namespaces, "Also list the namespaces");
  status->callback([=] { context->command = [=] { return Status(*context, *with_namespaces); }; });

  CLI::App* const resize =
      app->add_subcommand("resize", "Give the daemon more or less memory, while it runs");
  const auto capacity = std::make_shared<std::string>();
  resize->add_option("capacity", *capacity, "2GiB, or 50% of what the host can give")->required();
  resize->callback([=] { context->command = [=] { return Resize(*context, *capacity); }; });

  CLI::App* const drain = app->add_subcommand(
      "drain", "Take no new blocks from other hosts, and tell health checks so; reads go on");
  const auto off = std::make_shared<bool>(false);
  drain->add_flag("--off", *off, "Serve again");
  drain->callback([=] { context->command = [=] { return Drain(*context, !*off); }; });

  CLI::App* const evict =
      app->add_subcommand("evict", "Free memory by the eviction policy, as puts would");
  const auto bytes = std::make_shared<std::string>(), tenant = std::make_shared<std::string>();
  evict->add_option("bytes", *bytes, "At least so much, as far as blocks in use allow")->required();
  evict->add_option("--tenant", *tenant, "Of this tenant only");
  evict->callback([=] { context->command = [=] { return Evict(*context, *bytes, *tenant); }; });

  CLI::App* const invalidate =
      app->add_subcommand("invalidate", "Remove blocks: lookups miss them at once");
  const auto what = std::make_shared<InvalidateFlags>();
  invalidate->add_option("--ns", what->ns, "One namespace, by its 32 hexadecimal digits");
  invalidate->add_option("--model", what->model, "All namespaces of a model, by its name");
  invalidate->add_flag("--all", what->all, "Everything");
  invalidate->add_flag("--yes", what->yes, "Do not ask");
  invalidate->callback([=] { context->command = [=] { return Invalidate(*context, *what); }; });

  CLI::App* const erase = app->add_subcommand(
      "erase", "Remove everything of a tenant or a namespace, in memory and on devices");
  const auto whose = std::make_shared<EraseFlags>();
  erase->add_option("--ns", whose->ns, "One namespace, by its 32 hexadecimal digits");
  erase->add_option("--tenant", whose->tenant, "All namespaces of a tenant, open or not");
  erase->add_flag("--yes", whose->yes, "Do not ask");
  erase->callback([=] { context->command = [=] { return Erase(*context, *whose); }; });
}

}  // namespace kvarve::cli
