#include "client/cli/vllm_config.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "client/cli/output.h"

namespace kvarve::cli {
namespace {

constexpr char kExtra[] = "kv_connector_extra_config";

std::string Upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  });
  return text;
}

bool IsPlain(char c) {
  constexpr std::string_view kPlain = "_-./:=,+@%";
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         kPlain.find(c) != std::string_view::npos;
}

}  // namespace

std::string ShellQuoted(const std::string& text) {
  if (!text.empty() && std::all_of(text.begin(), text.end(), IsPlain)) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

absl::StatusOr<Json> KvTransferConfig(const std::string& endpoint,
                                      std::span<const std::string> settings) {
  Json extra = {{"endpoint", endpoint}};
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--set %s: an example is --set block_tokens=256", setting));
    }
    const std::string text = setting.substr(equals + 1);
    const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    const bool is_json = value.is_boolean() || value.is_number();
    extra[setting.substr(0, equals)] = is_json ? value : Json(text);
  }
  return Json{{"kv_connector", kConnectorName},
              {"kv_connector_module_path", kConnectorModule},
              {"kv_role", "kv_both"},
              {"kv_load_failure_policy", "recompute"},
              {kExtra, std::move(extra)}};
}

std::vector<std::string> VllmEnvironment(const Json& config) {
  std::vector<std::string> environment = {"KVARVE=1"};
  for (const auto& [name, value] : config.at(kExtra).items()) {
    if (name == "endpoint" && value == kDefaultEndpoint) continue;
    environment.push_back("KVARVE_" + Upper(name) + "=" + TextOf(config.at(kExtra), name.c_str()));
  }
  return environment;
}

std::string VllmText(const Json& config, std::span<const std::string> environment) {
  std::string text =
      "# With a flag:\nvllm serve MODEL --kv-transfer-config " + ShellQuoted(config.dump()) +
      "\n\n# Or without one (a KV-transfer configuration of the engine's own always wins):\n";
  for (const std::string& variable : environment) {
    const size_t equals = variable.find('=');
    text += variable.substr(0, equals + 1) + ShellQuoted(variable.substr(equals + 1)) + " ";
  }
  return text + "vllm serve MODEL\n";
}

}  // namespace kvarve::cli
