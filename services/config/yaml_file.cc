#include "services/config/yaml_file.h"

#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>

#include "absl/strings/str_format.h"
#include "services/config/config.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"),
                                                             &std::fclose);
  if (file == nullptr) {
    const std::string text = absl::StrFormat("%s: %s", path, std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(text) : absl::PermissionDeniedError(text);
  }
  std::string content(kMaxConfigFileBytes + 1, '\0');
  content.resize(std::fread(content.data(), 1, content.size(), file.get()));
  if (std::ferror(file.get()) != 0) return absl::InvalidArgumentError(path + ": cannot be read");
  if (content.size() > kMaxConfigFileBytes)
    return absl::InvalidArgumentError(path + ": is larger than 1 MiB");
  return content;
}

class Flattener {
 public:
  explicit Flattener(const std::string& path) : path_(path) {}

  absl::Status AddMap(const YAML::Node& map, const std::string& prefix, int depth) {
    if (depth > kMaxYamlDepth) return Wrong(map, prefix, "is nested too deeply");
    for (const auto& item : map) {
      if (!item.first.IsScalar())
        return Wrong(item.first, prefix, "has a key that is not plain text");
      const std::string name =
          prefix.empty() ? item.first.Scalar() : prefix + "." + item.first.Scalar();
      const YAML::Node& value = item.second;
      if (value.IsMap()) {
        KV_RETURN_IF_ERROR(AddMap(value, name, depth + 1));
        continue;
      }
      if (entries_.size() == kMaxYamlEntries) return Wrong(value, name, "is one setting too many");
      if (!names_.insert(name).second) return Wrong(item.first, name, "is set twice");
      YamlEntry entry{.name = name, .text = "", .line = item.first.Mark().line + 1};
      if (value.IsScalar()) {
        entry.text = value.Scalar();
      } else if (value.IsSequence()) {
        KV_RETURN_IF_ERROR(Join(value, name, &entry.text));
      } else {
        return Wrong(item.first, name, "has no value; write \"\" for an empty one");
      }
      entries_.push_back(std::move(entry));
    }
    return absl::OkStatus();
  }

  std::vector<YamlEntry> Take() && { return std::move(entries_); }

 private:
  absl::Status Join(const YAML::Node& sequence, const std::string& name, std::string* text) const {
    for (const auto& item : sequence) {
      if (!item.IsScalar()) return Wrong(item, name, "has an item that is not plain text");
      if (text->size() > kMaxValueBytes) return Wrong(item, name, "is too long");
      if (!text->empty()) *text += ",";
      *text += item.Scalar();
    }
    return absl::OkStatus();
  }

  absl::Status Wrong(const YAML::Node& node, const std::string& name, const char* what) const {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s line %d: %s %s", path_, node.Mark().line + 1, name, what));
  }

  const std::string& path_;
  std::vector<YamlEntry> entries_;
  std::set<std::string> names_;
};

}  // namespace

absl::StatusOr<std::vector<YamlEntry>> ReadYamlFile(const std::string& path) {
  KV_ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  try {
    const YAML::Node root = YAML::Load(content);
    if (root.IsNull()) return std::vector<YamlEntry>();  // an empty file, or only comments
    if (!root.IsMap()) return absl::InvalidArgumentError(path + ": is not a map of settings");
    Flattener flattener(path);
    KV_RETURN_IF_ERROR(flattener.AddMap(root, "", 1));
    return std::move(flattener).Take();
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s line %d: %s", path, error.mark.line + 1, error.msg));
  }
}

}  // namespace kvarve
