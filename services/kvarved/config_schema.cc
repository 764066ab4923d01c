#include "services/kvarved/config_schema.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "services/config/settings.h"

namespace kvarve {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kBytesPattern[] = R"(^[0-9]+(\.[0-9]+)? ?(B|[KMGT](iB)?)?$)";
constexpr char kDurationPattern[] = R"(^(0|[0-9]+(\.[0-9]+)? ?(ns|us|ms|s|m|h))$)";
constexpr char kCapacityPattern[] =
    R"(^((80|[1-7]?[0-9](\.[0-9]+)?) ?%|[0-9]+(\.[0-9]+)? ?(B|[KMGT](iB)?)?)$)";
constexpr char kAddressPattern[] = R"(^(off|.+:[0-9]{1,5})$)";

Json Number(const Setting& setting) {
  Json json = {{"type", "integer"}};
  if (setting.min != 0 || setting.max != 0) {
    json["minimum"] = setting.min;
    json["maximum"] = setting.max;
  }
  return json;
}

Json TextOrNumber(const char* pattern) {
  return {{"type", {"string", "integer"}}, {"pattern", pattern}, {"minimum", 0}};
}

Json Choices(std::string_view choices) {
  Json names = Json::array();
  while (true) {
    const size_t end = choices.find('|');
    names.push_back(std::string(choices.substr(0, end)));
    if (end == std::string_view::npos) break;
    choices.remove_prefix(end + 1);
  }
  return {{"enum", std::move(names)}};
}

Json SchemaOf(const Setting& setting) {
  switch (setting.type) {
    case SettingType::kBool:
      return {{"type", "boolean"}};
    case SettingType::kInt:
      return Number(setting);
    case SettingType::kBytes:
      return TextOrNumber(kBytesPattern);
    case SettingType::kCapacity:
      return TextOrNumber(kCapacityPattern);
    case SettingType::kDuration:
      return TextOrNumber(kDurationPattern);
    case SettingType::kString:
      return {{"type", {"string", "number"}}, {"maxLength", kMaxValueBytes}};
    case SettingType::kChoice:
      return Choices(setting.choices);
    case SettingType::kList:
      return {{"type", {"array", "string"}},
              {"maxItems", kMaxListItems},
              {"items", {{"type", {"string", "integer"}}}}};
    case SettingType::kAddress:
      return {{"type", "string"}, {"pattern", kAddressPattern}};
  }
  return Json::object();
}

}  // namespace

std::string ConfigSchemaJson() {
  Json sections = Json::object();
  for (const SettingSection& section : SettingSections()) {
    Json properties = Json::object();
    for (const Setting& setting : Settings()) {
      const std::string prefix = std::string(section.name) + ".";
      if (!setting.name.starts_with(prefix)) continue;
      Json json = SchemaOf(setting);
      json["description"] = std::string(setting.help);
      json["default"] = std::string(setting.default_text);
      properties[std::string(setting.name.substr(prefix.size()))] = std::move(json);
    }
    sections[std::string(section.name)] = {{"description", std::string(section.title)},
                                           {"type", "object"},
                                           {"additionalProperties", false},
                                           {"properties", std::move(properties)}};
  }
  const Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                       {"title", "kvarved.yaml"},
                       {"type", "object"},
                       {"additionalProperties", false},
                       {"properties", std::move(sections)}};
  return schema.dump(2) + "\n";
}

}  // namespace kvarve
