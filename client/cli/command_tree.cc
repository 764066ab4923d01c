#include "client/cli/command_tree.h"

#include <CLI/CLI.hpp>

namespace kvarve::cli {
namespace {

Json OptionJson(const CLI::Option& option) {
  Json names = Json::array();
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  if (names.empty()) names.push_back(option.get_name());  // a positional
  const bool takes_value = option.get_items_expected_max() > 0;
  return {{"names", std::move(names)},
          {"help", option.get_description()},
          {"value", takes_value ? option.get_type_name() : ""},
          {"default", option.get_default_str()},
          {"environment", option.get_envname()}};
}

}  // namespace

Json CommandTree(const CLI::App& app) {
  Json options = Json::array(), commands = Json::array();
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) options.push_back(OptionJson(*option));  // "": hidden
  }
  for (const CLI::App* command : app.get_subcommands(/*filter=*/nullptr)) {
    if (!command->get_group().empty()) commands.push_back(CommandTree(*command));
  }
  return {{"name", app.get_name()},
          {"help", app.get_description()},
          {"options", std::move(options)},
          {"commands", std::move(commands)}};
}

}  // namespace kvarve::cli
