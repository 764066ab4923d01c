#include "services/config/command_line.h"

#include <CLI/CLI.hpp>
#include <list>
#include <string_view>

#include "absl/strings/str_format.h"
#include "services/config/settings.h"

namespace kvarve {
namespace {

struct ActionFlag {
  CommandLine::Action action;
  const char* flag;
  const char* help;
};
constexpr ActionFlag kActions[] = {
    {CommandLine::Action::kCheck, "--check",
     "Validate the configuration and the credentials that it names, and exit (0: good, 2: not)"},
    {CommandLine::Action::kPrintConfig, "--print-config",
     "Print the effective values and where each came from"},
    {CommandLine::Action::kPrintDocs, "--print-docs", "Print docs/configuration.md"},
    {CommandLine::Action::kPrintMetrics, "--print-metrics", "Print docs/metrics.md"},
    {CommandLine::Action::kPrintSchema, "--print-schema",
     "Print the JSON schema of the configuration file"},
    {CommandLine::Action::kVersion, "--version", "Print the version"},
};

constexpr char kFooter[] = R"(
Signals: SIGTERM and SIGINT stop the daemon cleanly; SIGHUP is ignored.
Exit codes: 0 stopped or printed; 1 could not start or run; 2 wrong configuration or command line;
3 another kvarved serves the same socket.)";

absl::Status UnknownFlag(const std::string& argument) {
  std::string_view name = argument;
  while (name.starts_with('-')) name.remove_prefix(1);
  const std::string nearest = NearestSetting(name.substr(0, name.find('=')));
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: no such flag%s", argument.substr(0, 64),
      nearest.empty() ? "; kvarved --help lists all" : "; did you mean --" + nearest + "?"));
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv) {
  CommandLine line;
  CLI::App app("kvarved: keeps prefix KV blocks of inference engines in host memory", "kvarved");
  app.footer(kFooter);
  app.allow_extras();
  app.set_help_flag("--help,-h", "Print this help");
  app.add_option("--config", line.config_file, "YAML file with settings")->type_name("FILE");

  std::list<bool> chosen;  // addresses stay
  for (const ActionFlag& action : kActions) {
    chosen.push_back(false);
    app.add_flag(action.flag, chosen.back(), action.help);
  }
  std::list<std::string> values;
  std::vector<std::pair<const Setting*, CLI::Option*>> options;
  for (const Setting& setting : Settings()) {
    values.emplace_back();
    CLI::Option* const option =
        app.add_option("--" + std::string(setting.name), values.back(), std::string(setting.help));
    option->type_name(setting.default_text.empty() ? "VALUE" : std::string(setting.default_text));
    option->group("Settings (default beside each; docs/configuration.md)");
    if (setting.type == SettingType::kList) {
      option->join(',');  // each time adds
    } else {
      option->take_last();
    }
    options.emplace_back(&setting, option);
  }

  try {
    app.parse(argc, const_cast<char**>(argv));
  } catch (const CLI::CallForHelp&) {
    line.action = CommandLine::Action::kHelp;
    line.help = app.help();
    return line;
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (!app.remaining().empty()) return UnknownFlag(app.remaining().front());

  int actions = 0;
  auto is_chosen = chosen.begin();
  for (const ActionFlag& action : kActions) {
    if (*is_chosen++) {
      line.action = action.action;
      ++actions;
    }
  }
  if (actions > 1)
    return absl::InvalidArgumentError("only one of --check, --print-... and --version at a time");
  auto value = values.begin();
  for (const auto& [setting, option] : options) {
    if (option->count() > 0) line.flags.emplace_back(std::string(setting->name), *value);
    ++value;
  }
  return line;
}

}  // namespace kvarve
