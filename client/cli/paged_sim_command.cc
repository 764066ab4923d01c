// paged-sim: what a request mix wastes of KV memory, reserved in one piece or taken page by page.
// Asks no daemon.
#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>
#include <sstream>

#include "absl/strings/str_format.h"
#include "client/cli/context.h"
#include "client/cli/output.h"
#include "gpu/paged/paged_sim.h"

namespace kvarve::cli {
namespace {

constexpr int64_t kMaxRequests = 1'000'000;

struct SimFlags {
  SimMemory memory{16384, 2048, 16};
  std::string file;
  int64_t requests = 1000;
  double prompt_mean = 161, output_mean = 338;
  uint64_t seed = 1;
};

// One request a line: prompt and output tokens; '#' starts a comment.
absl::StatusOr<std::vector<SimRequest>> ReadRequests(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError("cannot read " + path);
  std::vector<SimRequest> requests;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream fields(line.substr(0, line.find('#')));
    if ((fields >> std::ws).eof()) continue;
    SimRequest request;
    std::string rest;
    if (!(fields >> request.prompt_tokens >> request.output_tokens) || fields >> rest) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s:%d: a line has two numbers, prompt and output tokens", path, number));
    }
    if (requests.size() == kMaxRequests)
      return absl::InvalidArgumentError(absl::StrFormat("more than %d requests", kMaxRequests));
    requests.push_back(request);
  }
  return requests;
}

std::string Percent(double share) { return absl::StrFormat("%.1f %%", share * 100); }

int Simulate(const Context& context, const SimFlags& flags) {
  absl::StatusOr<std::vector<SimRequest>> requests = std::vector<SimRequest>();
  if (!flags.file.empty()) {
    requests = ReadRequests(flags.file);
    if (!requests.ok()) return Report(context, requests.status());
  } else {
    if (flags.requests < 1 || flags.requests > kMaxRequests || !(flags.prompt_mean > 0) ||
        !(flags.output_mean > 0) || flags.memory.max_tokens < 2) {
      return ReportUsage(context, "1 to 1000000 requests, of at least one token each way");
    }
    requests = RandomRequests(flags.requests, flags.prompt_mean, flags.output_mean,
                              flags.memory.max_tokens, flags.seed);
  }
  Table table({"memory", "useful", "for later", "never used", "unclaimed", "waste of held",
               "running", "started again"});
  Json rows = Json::array();
  for (const SimPolicy policy :
       {SimPolicy::kLongest, SimPolicy::kPowerOfTwo, SimPolicy::kExact, SimPolicy::kPaged}) {
    const absl::StatusOr<SimShares> shares = SimulateMemory(flags.memory, policy, *requests);
    if (!shares.ok()) return Report(context, shares.status());
    const std::string name(SimPolicyName(policy));
    rows.push_back({{"memory", name},
                    {"useful", shares->stored},
                    {"for_later", shares->ahead},
                    {"never_used", shares->never},
                    {"unclaimed", shares->unclaimed},
                    {"waste_of_held", shares->Waste()},
                    {"running", shares->running},
                    {"steps", shares->steps},
                    {"started_again", shares->preempted}});
    table.Add({name, Percent(shares->stored), Percent(shares->ahead), Percent(shares->never),
               Percent(shares->unclaimed), Percent(shares->Waste()),
               absl::StrFormat("%.1f", shares->running),
               CountText(static_cast<uint64_t>(shares->preempted))});
  }
  if (context.json) {
    PrintJson({{"requests", requests->size()}, {"rows", std::move(rows)}});
  } else {
    Print(table.Text());
  }
  return kExitGood;
}

}  // namespace

void AddPagedSimCommand(CLI::App* app, Context* context) {
  CLI::App* const sim = app->add_subcommand(
      "paged-sim", "KV memory that a request mix wastes, reserved in one piece or paged");
  const auto flags = std::make_shared<SimFlags>();
  sim->add_option("--memory-tokens", flags->memory.tokens, "Tokens that fit into the KV memory")
      ->capture_default_str();
  sim->add_option("--max-tokens", flags->memory.max_tokens, "Longest sequence that is served")
      ->capture_default_str();
  sim->add_option("--page-tokens", flags->memory.page_tokens, "Tokens a page")
      ->capture_default_str();
  sim->add_option("--file", flags->file,
                  "Requests, one a line: prompt tokens, output tokens; instead of random ones");
  sim->add_option("--requests", flags->requests, "Random requests")->capture_default_str();
  sim->add_option("--prompt-mean", flags->prompt_mean, "Their prompts' mean length")
      ->capture_default_str();
  sim->add_option("--output-mean", flags->output_mean, "Their outputs' mean length")
      ->capture_default_str();
  sim->add_option("--seed", flags->seed, "Of the random lengths")->capture_default_str();
  sim->callback([=] { context->command = [=] { return Simulate(*context, *flags); }; });
}

}  // namespace kvarve::cli
