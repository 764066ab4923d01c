#include "services/config/config.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "services/config/yaml_file.h"
#include "storage/base/edit_distance.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr std::string_view kEnvironmentPrefix = "KVARVE_";
// A KVARVE_ name of nobody's section (other programs of the project, a cluster's service variables)
// is an error only when it is this near to a setting's.
constexpr size_t kNearEnvironmentEdits = 2;

std::string Upper(std::string_view text) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(), [](char c) {
    return static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  });
  return upper;
}

const Setting* FindByEnvironment(std::string_view variable) {
  for (const Setting& setting : Settings()) {
    if (EnvironmentName(setting) == variable) return &setting;
  }
  return nullptr;
}

bool IsInSection(std::string_view variable) {
  for (const SettingSection& section : SettingSections()) {
    if (variable.starts_with(std::string(kEnvironmentPrefix) + Upper(section.name) + "_"))
      return true;
  }
  return false;
}

std::string NearestEnvironment(std::string_view variable, size_t* edits) {
  std::string nearest;
  *edits = SIZE_MAX;
  for (const Setting& setting : Settings()) {
    const std::string known = EnvironmentName(setting);
    const size_t distance = EditDistance(variable.substr(0, 128), known);
    if (distance < *edits) {
      *edits = distance;
      nearest = known;
    }
  }
  return nearest;
}

// Every text is quoted, so that no value turns into another YAML type or a comment.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

absl::StatusOr<Config> Config::Load(const ConfigSources& sources) {
  Config config;
  for (const Setting& setting : Settings()) {
    const absl::StatusOr<SettingValue> value = ParseSetting(setting, setting.default_text);
    KV_CHECK(value.ok());  // the table's own defaults
    config.rows_.push_back({std::string(setting.default_text), *value, "default"});
  }
  std::vector<std::string> errors;
  if (!sources.file.empty()) {
    KV_ASSIGN_OR_RETURN(const std::vector<YamlEntry> entries, ReadYamlFile(sources.file));
    for (const YamlEntry& entry : entries) {
      config.Set(entry.name, entry.text,
                 absl::StrFormat("file %s line %d", sources.file, entry.line), &errors);
    }
  }
  config.SetFromEnvironment(sources.environment, &errors);
  for (const auto& [name, text] : sources.flags) config.Set(name, text, "flag --" + name, &errors);
  if (errors.empty()) return config;

  std::string text;
  for (size_t i = 0; i < std::min(errors.size(), kMaxConfigErrors); ++i)
    text += (i > 0 ? "\n" : "") + errors[i];
  if (errors.size() > kMaxConfigErrors) {
    text += absl::StrFormat("\nand %d more", errors.size() - kMaxConfigErrors);
  }
  return absl::InvalidArgumentError(text);
}

void Config::Set(std::string_view name, std::string_view text, std::string origin,
                 std::vector<std::string>* errors) {
  const Setting* const setting = FindSetting(name);
  if (setting == nullptr) {
    const std::string nearest = NearestSetting(name);
    errors->push_back(absl::StrFormat("%s (%s): no such setting%s", name, origin,
                                      nearest.empty() ? "; kvarved --print-config lists all"
                                                      : "; did you mean " + nearest + "?"));
    return;
  }
  absl::StatusOr<SettingValue> value = ParseSetting(*setting, text);
  if (!value.ok()) {
    errors->push_back(
        absl::StrFormat("%s (%s): %s", name, origin, std::string(value.status().message())));
    return;
  }
  rows_[static_cast<size_t>(setting - Settings().data())] = {std::string(text), *std::move(value),
                                                             std::move(origin)};
}

void Config::SetFromEnvironment(const std::vector<std::string>& environment,
                                std::vector<std::string>* errors) {
  for (const std::string& assignment : environment) {
    const size_t equals = assignment.find('=');
    if (!assignment.starts_with(kEnvironmentPrefix) || equals == std::string::npos) continue;
    const std::string_view variable = std::string_view(assignment).substr(0, equals);
    if (const Setting* const setting = FindByEnvironment(variable)) {
      Set(setting->name, std::string_view(assignment).substr(equals + 1),
          "environment " + std::string(variable), errors);
      continue;
    }
    size_t edits = 0;
    const std::string nearest = NearestEnvironment(variable, &edits);
    if (IsInSection(variable) || edits <= kNearEnvironmentEdits) {
      errors->push_back(absl::StrFormat("%s (environment): no such setting; did you mean %s?",
                                        variable, nearest));
    }
  }
}

const Config::Row& Config::Find(std::string_view name) const {
  const Setting* const setting = FindSetting(name);
  KV_CHECK(setting != nullptr);
  return rows_[static_cast<size_t>(setting - Settings().data())];
}

bool Config::Bool(std::string_view name) const { return std::get<bool>(Find(name).value); }
int64_t Config::Int(std::string_view name) const { return std::get<int64_t>(Find(name).value); }
uint64_t Config::Bytes(std::string_view name) const { return std::get<uint64_t>(Find(name).value); }
Capacity Config::CapacityOf(std::string_view name) const {
  return std::get<Capacity>(Find(name).value);
}
int64_t Config::DurationNanos(std::string_view name) const {
  return std::get<int64_t>(Find(name).value);
}
const std::string& Config::Text(std::string_view name) const {
  return std::get<std::string>(Find(name).value);
}
const std::vector<std::string>& Config::List(std::string_view name) const {
  return std::get<std::vector<std::string>>(Find(name).value);
}
const ListenAddress& Config::Address(std::string_view name) const {
  return std::get<ListenAddress>(Find(name).value);
}
const std::string& Config::TextOf(std::string_view name) const { return Find(name).text; }
const std::string& Config::Origin(std::string_view name) const { return Find(name).origin; }

std::string Config::Print() const {
  std::string text;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const std::string line = absl::StrFormat("%s: %s", Settings()[i].name, Quoted(rows_[i].text));
    text += absl::StrFormat("%-52s  # %s\n", line, rows_[i].origin);
  }
  return text;
}

}  // namespace kvarve
