// Text to values: one function a type, and the words of every refusal.
#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "absl/strings/str_format.h"
#include "services/config/settings.h"
#include "storage/base/edit_distance.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

constexpr double kCapacityPercentMax = 80;

absl::Status Refused(std::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat("%s", why));
}

std::string_view Trim(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string FormatNumber(const Setting& setting, int64_t value) {
  if (setting.type == SettingType::kBytes) return FormatBytes(static_cast<uint64_t>(value));
  if (setting.type == SettingType::kDuration) return FormatDuration(value);
  return absl::StrFormat("%d", value);
}

absl::Status CheckRange(const Setting& setting, int64_t value) {
  if (setting.min == 0 && setting.max == 0) return absl::OkStatus();
  if (value >= setting.min && value <= setting.max) return absl::OkStatus();
  return Refused("is out of range");
}

absl::StatusOr<SettingValue> ParseBool(std::string_view text) {
  if (text == "true" || text == "yes" || text == "on" || text == "1") return SettingValue(true);
  if (text == "false" || text == "no" || text == "off" || text == "0") return SettingValue(false);
  return Refused("is neither true nor false");
}

absl::StatusOr<SettingValue> ParseInt(const Setting& setting, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    return Refused("is not a whole number");
  KV_RETURN_IF_ERROR(CheckRange(setting, value));
  return SettingValue(value);
}

absl::StatusOr<SettingValue> ParseSize(const Setting& setting, std::string_view text) {
  const absl::StatusOr<uint64_t> value = ParseBytes(text);
  if (!value.ok()) return Refused("is not a size");
  if (*value > static_cast<uint64_t>(INT64_MAX)) return Refused("is out of range");
  KV_RETURN_IF_ERROR(CheckRange(setting, static_cast<int64_t>(*value)));
  return SettingValue(*value);
}

absl::StatusOr<SettingValue> ParseCapacity(std::string_view text) {
  Capacity capacity;
  if (!text.empty() && text.back() == '%') {
    const std::string_view number = Trim(text.substr(0, text.size() - 1));
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), capacity.percent);
    if (error != std::errc() || end != number.data() + number.size())
      return Refused("is not a percentage");
    if (!(capacity.percent > 0 && capacity.percent <= kCapacityPercentMax))
      return Refused("is out of range");
    return SettingValue(capacity);
  }
  const absl::StatusOr<uint64_t> bytes = ParseBytes(text);
  if (!bytes.ok()) return Refused("is neither a percentage nor a size");
  if (*bytes == 0) return Refused("is out of range");
  capacity.bytes = *bytes;
  return SettingValue(capacity);
}

absl::StatusOr<SettingValue> ParseTime(const Setting& setting, std::string_view text) {
  const absl::StatusOr<int64_t> value = ParseDuration(text);
  if (!value.ok()) return Refused("is not a duration");
  KV_RETURN_IF_ERROR(CheckRange(setting, *value));
  return SettingValue(*value);
}

absl::StatusOr<SettingValue> ParseChoice(const Setting& setting, std::string_view text) {
  for (const std::string_view choice : Split(setting.choices, '|')) {
    if (choice == text) return SettingValue(std::string(text));
  }
  return Refused("is not one of its choices");
}

absl::StatusOr<SettingValue> ParseList(std::string_view text) {
  std::vector<std::string> items;
  if (!Trim(text).empty()) {
    for (const std::string_view part : Split(text, ',')) {
      if (Trim(part).empty()) return Refused("has an empty item");
      if (items.size() == kMaxListItems) return Refused("has too many items");
      items.emplace_back(Trim(part));
    }
  }
  return SettingValue(std::move(items));
}

}  // namespace

std::string ListenAddress::ToString() const {
  if (off()) return "off";
  const bool is_v6 = host.find(':') != std::string::npos;
  return is_v6 ? absl::StrFormat("[%s]:%d", host, port) : absl::StrFormat("%s:%d", host, port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text) {
  ListenAddress address;
  if (text == "off" || text.empty()) return address;
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return Refused("has no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (port.empty() || error != std::errc() || end != port.data() + port.size()) {
    return Refused("has no port between 0 and 65535");
  }
  if (host == "localhost") host = "127.0.0.1";
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    in6_addr v6;
    address.host = host;
    if (inet_pton(AF_INET6, address.host.c_str(), &v6) != 1)
      return Refused("has no IPv6 address in its brackets");
    address.is_loopback = IN6_IS_ADDR_LOOPBACK(&v6);
    return address;
  }
  in_addr v4;
  address.host = host;
  if (inet_pton(AF_INET, address.host.c_str(), &v4) != 1)
    return Refused("has no literal IPv4 or [IPv6] address");
  address.is_loopback = (ntohl(v4.s_addr) >> 24) == 127;
  return address;
}

std::string_view TypeName(SettingType type) {
  switch (type) {
    case SettingType::kBool:
      return "bool";
    case SettingType::kInt:
      return "int";
    case SettingType::kBytes:
      return "bytes";
    case SettingType::kCapacity:
      return "percentage or bytes";
    case SettingType::kDuration:
      return "duration";
    case SettingType::kString:
      return "text";
    case SettingType::kChoice:
      return "choice";
    case SettingType::kList:
      return "list";
    case SettingType::kAddress:
      return "address:port or off";
  }
  return "";
}

std::string RangeText(const Setting& setting) {
  switch (setting.type) {
    case SettingType::kBool:
      return "true or false";
    case SettingType::kCapacity:
      return absl::StrFormat("up to %d%%", static_cast<int>(kCapacityPercentMax));
    case SettingType::kChoice: {
      std::string text;
      for (const std::string_view choice : Split(setting.choices, '|')) {
        text += text.empty() ? "" : ", ";
        text += choice;
      }
      return text;
    }
    case SettingType::kList:
      return absl::StrFormat("up to %d items", kMaxListItems);
    default:
      break;
  }
  if (setting.min == 0 && setting.max == 0) return "";
  return FormatNumber(setting, setting.min) + " to " + FormatNumber(setting, setting.max);
}

absl::StatusOr<SettingValue> ParseSetting(const Setting& setting, std::string_view raw) {
  const std::string_view text = Trim(raw);
  absl::StatusOr<SettingValue> value = Refused("is too long");
  if (raw.size() <= kMaxValueBytes) {
    switch (setting.type) {
      case SettingType::kBool:
        value = ParseBool(text);
        break;
      case SettingType::kInt:
        value = ParseInt(setting, text);
        break;
      case SettingType::kBytes:
        value = ParseSize(setting, text);
        break;
      case SettingType::kCapacity:
        value = ParseCapacity(text);
        break;
      case SettingType::kDuration:
        value = ParseTime(setting, text);
        break;
      case SettingType::kString:
        value = SettingValue(std::string(text));
        break;
      case SettingType::kChoice:
        value = ParseChoice(setting, text);
        break;
      case SettingType::kList:
        value = ParseList(text);
        break;
      case SettingType::kAddress: {
        absl::StatusOr<ListenAddress> address = ParseListenAddress(text);
        if (address.ok()) {
          value = SettingValue(*std::move(address));
        } else {
          value = address.status();
        }
        break;
      }
    }
  }
  if (value.ok()) return value;
  const std::string range = RangeText(setting);
  return absl::InvalidArgumentError(
      absl::StrFormat("\"%s\" %s; expected %s%s, for example %s", text.substr(0, 64),
                      std::string(value.status().message()), TypeName(setting.type),
                      range.empty() ? "" : " (" + range + ")", setting.example));
}

const Setting* FindSetting(std::string_view name) {
  for (const Setting& setting : Settings()) {
    if (setting.name == name) return &setting;
  }
  return nullptr;
}

std::string EnvironmentName(const Setting& setting) {
  std::string name = "KVARVE_";
  for (const char c : setting.name) {
    name += c == '.' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return name;
}

std::string NearestSetting(std::string_view name) {
  // A whole last part ("capacity_bytes") or a name without its unit ("arena.capacity") is meant
  // too.
  for (const Setting& setting : Settings()) {
    const std::string_view known = setting.name;
    if (name.size() >= 4 &&
        (known.ends_with("." + std::string(name)) || known.starts_with(std::string(name) + "_"))) {
      return std::string(known);
    }
  }
  std::vector<std::string> known;
  for (const Setting& setting : Settings()) known.emplace_back(setting.name);
  return NearestWord(name, known);
}

}  // namespace kvarve
