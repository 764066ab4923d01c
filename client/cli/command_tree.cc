#include "client/cli/command_tree.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "storage/base/edit_distance.h"

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

const CLI::Option* FindOption(const CLI::App* app, const std::string& name) {
  for (; app != nullptr; app = app->get_parent()) {
    if (const CLI::Option* const found = app->get_option_no_throw(name)) return found;
  }
  return nullptr;
}

std::string NearestOption(const CLI::App* app, const std::string& name) {
  std::vector<std::string> known;
  for (; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_group().empty()) continue;
      for (const std::string& of : option->get_lnames()) known.push_back("--" + of);
    }
  }
  return NearestWord(name, known);
}

}  // namespace

std::string MeantWord(const CLI::App& app, std::span<const std::string> words) {
  const CLI::App* at = &app;
  for (size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    if (name.starts_with("-")) {
      const CLI::Option* const option = FindOption(at, name);
      if (option == nullptr) return name.starts_with("--") ? NearestOption(at, name) : "";
      const bool has_value = name.size() < words[i].size();
      if (!has_value && option->get_items_expected_max() > 0) ++i;
      continue;
    }
    const auto commands = at->get_subcommands(/*filter=*/[](const CLI::App*) { return true; });
    if (commands.empty()) continue;  // a positional
    const auto next = std::ranges::find_if(
        commands, [&](const CLI::App* command) { return command->check_name(name); });
    if (next == commands.end()) {
      std::vector<std::string> known;
      known.reserve(commands.size());
      for (const CLI::App* command : commands) known.push_back(command->get_name());
      return NearestWord(name, known);
    }
    at = *next;
  }
  return "";
}

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
