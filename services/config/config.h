// The effective configuration of a daemon: the table's defaults, then a YAML file, then the
// environment, then flags, each over the one before. Whatever is wrong anywhere is reported at
// once, with its source. THREADS: any, once loaded.
#ifndef KVARVE_SERVICES_CONFIG_CONFIG_H_
#define KVARVE_SERVICES_CONFIG_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "services/config/settings.h"

namespace kvarve {

inline constexpr size_t kMaxConfigFileBytes = 1 << 20;
inline constexpr size_t kMaxConfigErrors = 20;

struct ConfigSources {
  std::string file;                      // path of the YAML file; empty: none
  std::vector<std::string> environment;  // "NAME=value", as in environ; only KVARVE_ names matter
  std::vector<std::pair<std::string, std::string>> flags;  // setting's name and value, in order
};

class Config {
 public:
  // InvalidArgument: one line for each unknown name and each wrong value. NotFound,
  // PermissionDenied: the file.
  static absl::StatusOr<Config> Load(const ConfigSources& sources);

  // REQUIRES: a name of the table, of that type.
  bool Bool(std::string_view name) const;
  int64_t Int(std::string_view name) const;
  uint64_t Bytes(std::string_view name) const;
  Capacity CapacityOf(std::string_view name) const;
  int64_t DurationNanos(std::string_view name) const;
  const std::string& Text(std::string_view name) const;  // kString and kChoice
  const std::vector<std::string>& List(std::string_view name) const;
  const ListenAddress& Address(std::string_view name) const;

  // The value as it was written, or the default's text.
  const std::string& TextOf(std::string_view name) const;
  // Where the value came from: "default", "file /etc/kvarve/kvarved.yaml line 3", "environment
  // KVARVE_...", "flag --...".
  const std::string& Origin(std::string_view name) const;

  // The whole configuration as a YAML file that loads to the same, each value's origin in a
  // comment.
  std::string Print() const;

 private:
  struct Row {
    std::string text;
    SettingValue value;
    std::string origin;
  };
  Config() = default;
  const Row& Find(std::string_view name) const;
  // Reports an unknown name or wrong value in `errors`.
  void Set(std::string_view name, std::string_view text, std::string origin,
           std::vector<std::string>* errors);
  void SetFromEnvironment(const std::vector<std::string>& environment,
                          std::vector<std::string>* errors);

  std::vector<Row> rows_;  // in the table's order
};

}  // namespace kvarve

#endif  // KVARVE_SERVICES_CONFIG_CONFIG_H_
