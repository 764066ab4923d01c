// The one table of kvarved's settings: a row says everything about a setting, and the file, the
// environment, the flags, --print-config and docs/configuration.md all read it. A new setting is a
// new row in settings.cc. THREADS: any; the table is constant.
#ifndef KVARVE_SERVICES_CONFIG_SETTINGS_H_
#define KVARVE_SERVICES_CONFIG_SETTINGS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvarve {

inline constexpr size_t kMaxListItems = 64;
inline constexpr size_t kMaxValueBytes = 4096;

enum class SettingType {
  kBool,      // "true", "false"                  bool
  kInt,       // "16"                             int64_t
  kBytes,     // "64MiB"                          uint64_t
  kCapacity,  // "40%" of what the host has, or bytes    Capacity
  kDuration,  // "20ms"                           int64_t, nanoseconds
  kString,    // free text                        std::string
  kChoice,    // one of the row's choices         std::string
  kList,      // "a,b", or a YAML sequence        std::vector<std::string>
  kAddress,   // "127.0.0.1:9410", or "off"       ListenAddress
};

// Part of a whole that only the daemon knows, or bytes.
struct Capacity {
  double percent = 0;  // > 0: of the whole
  uint64_t bytes = 0;
  uint64_t Of(uint64_t whole) const {
    return percent > 0 ? static_cast<uint64_t>(static_cast<double>(whole) * percent / 100) : bytes;
  }
};

struct ListenAddress {
  std::string host;  // a literal IPv4 or IPv6 address, without brackets; empty: off
  uint16_t port = 0;
  bool off() const { return host.empty(); }
  bool is_loopback = false;
  std::string ToString() const;
};

using SettingValue = std::variant<bool, int64_t, uint64_t, Capacity, std::string,
                                  std::vector<std::string>, ListenAddress>;

struct Setting {
  std::string_view name;  // dotted path; _bytes where it is bytes
  SettingType type;
  std::string_view default_text;
  std::string_view example;  // shown when a value is refused
  std::string_view help;     // sentences, for people who run kvarved
  // Inclusive, in the type's unit (kCapacity: percent and bytes have the daemon's limits). Both 0:
  // no range.
  int64_t min = 0;
  int64_t max = 0;
  std::string_view choices = {};  // "a|b"
};

struct SettingSection {
  std::string_view name;  // the first part of its settings' names
  std::string_view title;
};

std::span<const Setting> Settings();
std::span<const SettingSection> SettingSections();
const Setting* FindSetting(std::string_view name);  // null: no such setting

// KVARVE_ARENA_CAPACITY_BYTES of arena.capacity_bytes.
std::string EnvironmentName(const Setting& setting);
std::string_view TypeName(SettingType type);
// "1 to 64", "4.00 KiB to 1.00 GiB", "text or json"; empty when anything goes.
std::string RangeText(const Setting& setting);

// InvalidArgument says what is wrong with `text`, the range and an example, but not where the text
// came from.
absl::StatusOr<SettingValue> ParseSetting(const Setting& setting, std::string_view text);
absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text);

// The setting's name that is nearest to `name` by edit distance; empty when none is near enough to
// be meant.
std::string NearestSetting(std::string_view name);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_CONFIG_SETTINGS_H_
