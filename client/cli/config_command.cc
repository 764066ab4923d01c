// config vllm: what an engine has to be started with.
#include <CLI/CLI.hpp>
#include <memory>
#include <vector>

#include "client/cli/context.h"
#include "client/cli/output.h"
#include "client/cli/vllm_config.h"

namespace kvarve::cli {
namespace {

struct VllmFlags {
  std::vector<std::string> settings;
  bool value = false;
};

int Vllm(const Context& context, const VllmFlags& flags) {
  const absl::StatusOr<Json> config = KvTransferConfig(context.endpoint, flags.settings);
  if (!config.ok()) {
    Report(context, config.status());
    return kExitUsage;
  }
  const std::vector<std::string> environment = VllmEnvironment(*config);
  if (flags.value) {
    PrintJson(*config);
  } else if (context.json) {
    PrintJson({{"kv_transfer_config", *config}, {"environment", environment}});
  } else {
    Print(VllmText(*config, environment));
  }
  return kExitGood;
}

int Daemons(const Context& context) {
  const absl::StatusOr<Json> answer = Ask(context, {{"op", "config"}});
  if (!answer.ok()) return Report(context, answer.status());
  if (context.json) {
    PrintJson(*answer);
  } else {
    Print(TextOf(*answer, "yaml"));
  }
  return kExitGood;
}

}  // namespace

void AddConfigCommand(CLI::App* app, Context* context) {
  CLI::App* const config =
      app->add_subcommand("config", "What an engine has to be started with, and the daemon was");
  config->require_subcommand(1);
  CLI::App* const vllm = config->add_subcommand("vllm", "Flags and environment for vLLM");
  const auto flags = std::make_shared<VllmFlags>();
  vllm->add_option("--set", flags->settings,
                   "A setting of the connector, as in block_tokens=256; may be given again");
  vllm->add_flag("--value", flags->value,
                 "Print only the value: --kv-transfer-config \"$(kvarve config vllm --value)\"");
  vllm->callback([=] { context->command = [=] { return Vllm(*context, *flags); }; });

  CLI::App* const daemon = config->add_subcommand("daemon", "The daemon's effective configuration");
  daemon->callback([=] { context->command = [=] { return Daemons(*context); }; });
}

}  // namespace kvarve::cli
