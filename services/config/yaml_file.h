// A YAML file as a flat list of settings: nested maps and dotted keys alike. The only user of
// yaml-cpp. THREADS: any.  BLOCKS: on the file.
#ifndef KVARVE_SERVICES_CONFIG_YAML_FILE_H_
#define KVARVE_SERVICES_CONFIG_YAML_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kvarve {

inline constexpr int kMaxYamlDepth = 8;
inline constexpr size_t kMaxYamlEntries = 1024;

struct YamlEntry {
  std::string name;  // dotted path
  std::string text;  // of a scalar; a sequence's items joined with commas
  int line = 0;      // from 1
};

// NotFound, PermissionDenied: the file. InvalidArgument: not YAML (with the line), a name twice, a
// value that is neither scalar nor a sequence of scalars, too large, too deep.
absl::StatusOr<std::vector<YamlEntry>> ReadYamlFile(const std::string& path);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_CONFIG_YAML_FILE_H_
