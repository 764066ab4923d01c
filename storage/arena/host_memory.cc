#include "storage/arena/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "storage/arena/arena.h"
#include "storage/base/mutex.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

constexpr size_t kMaxFileBytes = 64 * 1024;  // the files read here have a few KiB
constexpr int kMaxCgroupLevels = 64;
constexpr uint64_t kHugePageBytes = 2 * kMiB;
// Version 1 says "no limit" with the largest multiple of a page.
constexpr uint64_t kV1NoLimit = uint64_t{1} << 62;

std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(kMaxFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return std::nullopt;
  text.remove_prefix(first);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// The number behind `field` at the start of a line: "MemTotal:  123 kB", "inactive_file 123".
std::optional<uint64_t> Field(std::string_view text, std::string_view field) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.substr(0, field.size()) == field) return ParseNumber(line.substr(field.size()));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::nullopt;
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  const std::optional<std::string> text = ReadFile(path);
  return text ? ParseNumber(*text) : std::nullopt;  // "max" is no number: no limit
}

// The path of this process's control group: "0::/a/b" (version 2), "4:memory:/a/b" (version 1).
std::optional<std::string> GroupPath(const std::string& text, bool v2) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool matches =
        v2 ? controllers.empty() : ("," + controllers + ",").find(",memory,") != std::string::npos;
    if (matches) return line.substr(second + 1);
  }
  return std::nullopt;
}

struct GroupFiles {
  const char* const* limits;
  size_t limit_count;
  const char* usage;
  const char* cache_field;
};
constexpr const char* kV2Limits[] = {"memory.max", "memory.high"};
constexpr const char* kV1Limits[] = {"memory.limit_in_bytes"};
constexpr GroupFiles kV2{kV2Limits, 2, "memory.current", "inactive_file "};
constexpr GroupFiles kV1{kV1Limits, 1, "memory.usage_in_bytes", "total_inactive_file "};

// One level: lowers the limits in `host` to those of the group in `folder`.
void ApplyGroup(const std::string& folder, const GroupFiles& files, HostMemory* host) {
  for (size_t i = 0; i < files.limit_count; ++i) {
    const std::string path = folder + "/" + files.limits[i];
    const std::optional<uint64_t> limit = ReadNumber(path);
    if (!limit || *limit >= kV1NoLimit) continue;
    if (*limit < host->cgroup_limit_bytes) {
      host->cgroup_limit_bytes = *limit;
      host->cgroup_limit_path = path;
    }
    uint64_t usage = ReadNumber(folder + "/" + files.usage).value_or(0);
    const std::string stat = ReadFile(folder + "/memory.stat").value_or("");
    usage -= std::min(usage, Field(stat, files.cache_field).value_or(0));
    host->cgroup_available_bytes =
        std::min(host->cgroup_available_bytes, *limit - std::min(usage, *limit));
  }
}

// All levels from `group` up to the mount. Inside a container the path may name a place outside of
// the mount: levels that do not exist there have no files and thus no limits.
void ApplyGroups(const std::string& mount, std::string group, const GroupFiles& files,
                 HostMemory* host) {
  for (int level = 0; level < kMaxCgroupLevels && group.find("..") == std::string::npos; ++level) {
    while (!group.empty() && group.back() == '/') group.pop_back();
    if (group.empty()) break;
    ApplyGroup(mount + group, files, host);
    group.erase(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  ApplyGroup(mount, files, host);
}

}  // namespace

uint64_t HostMemory::BudgetBytes(uint64_t held_bytes) const {
  const uint64_t available =
      available_bytes + std::min(held_bytes, total_bytes - std::min(total_bytes, available_bytes));
  return std::min(cgroup_limit_bytes, available);
}

uint64_t HostMemory::FreeBytes() const { return std::min(cgroup_available_bytes, available_bytes); }

absl::StatusOr<HostMemory> ReadHostMemory(const HostMemoryPaths& paths) {
  HostMemory host;
  const std::string meminfo = ReadFile(paths.proc + "/meminfo").value_or("");
  const std::optional<uint64_t> total = Field(meminfo, "MemTotal:");
  const std::optional<uint64_t> available = Field(meminfo, "MemAvailable:");
  if (!total || !available) {
    return absl::UnavailableError(
        absl::StrFormat("%s/meminfo does not tell MemTotal and MemAvailable", paths.proc));
  }
  host.total_bytes = *total * kKiB;
  host.available_bytes = *available * kKiB;
  if (Field(meminfo, "Hugepagesize:").value_or(0) * kKiB == kHugePageBytes) {
    const uint64_t free = Field(meminfo, "HugePages_Free:").value_or(0);
    const uint64_t promised = Field(meminfo, "HugePages_Rsvd:").value_or(0);
    host.free_huge_bytes = (free - std::min(free, promised)) * kHugePageBytes;
  }

  const std::string groups = ReadFile(paths.proc + "/self/cgroup").value_or("");
  if (const auto group = GroupPath(groups, /*v2=*/true)) {
    ApplyGroups(paths.cgroup, *group, kV2, &host);
  }
  if (const auto group = GroupPath(groups, /*v2=*/false)) {
    ApplyGroups(paths.cgroup + "/memory", *group, kV1, &host);
  }
  return host;
}

uint64_t DefaultArenaBytes(const HostMemory& host) {
  const uint64_t bytes = host.BudgetBytes() * kDefaultArenaPercent / 100;
  return bytes - bytes % kExtentBytes;
}

absl::Status CheckArenaBytes(const HostMemory& host, uint64_t wanted_bytes, uint64_t held_bytes,
                             bool huge_pages) {
  if (wanted_bytes < kExtentBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("an arena of %s is too small: use at least %s", FormatBytes(wanted_bytes),
                        FormatBytes(kExtentBytes)));
  }
  const uint64_t budget = host.BudgetBytes(held_bytes);
  const uint64_t most = budget * kMaxArenaPercent / 100 + (huge_pages ? host.free_huge_bytes : 0);
  if (wanted_bytes <= most) return absl::OkStatus();
  const bool by_cgroup = host.cgroup_limit_bytes == budget;
  const std::string source =
      by_cgroup ? absl::StrFormat("the memory limit of this control group (%s, %s)",
                                  FormatBytes(budget), host.cgroup_limit_path)
                : absl::StrFormat("the available memory of this host (%s)", FormatBytes(budget));
  // What others hold now they may give back; a limit stays.
  const bool may_fit_later =
      !by_cgroup && wanted_bytes <= host.total_bytes / 100 * kMaxArenaPercent;
  const auto error = may_fit_later ? absl::ResourceExhaustedError : absl::InvalidArgumentError;
  return error(absl::StrFormat(
      "an arena of %s is more than %d %% of %s: set it to %s or less, or %s",
      FormatBytes(wanted_bytes), kMaxArenaPercent, source, FormatBytes(most - most % kExtentBytes),
      by_cgroup ? "raise that limit" : "free memory first"));
}

std::function<uint64_t()> HostAvailableBytes(bool huge_pages, const HostMemoryPaths& paths,
                                             int64_t interval_nanos, const Clock* clock) {
  struct State {
    Mutex mutex;
    bool known = false;
    int64_t read_at = 0;
    uint64_t bytes = HostMemory::kNoLimit;
  };
  return [huge_pages, paths, interval_nanos, clock, state = std::make_shared<State>()] {
    MutexLock lock(&state->mutex);
    const int64_t now = clock->NowNanos();
    if (!state->known || now - state->read_at >= interval_nanos) {
      const absl::StatusOr<HostMemory> host = ReadHostMemory(paths);
      state->bytes = host.ok() ? host->FreeBytes() : HostMemory::kNoLimit;
      if (host.ok() && huge_pages) state->bytes = std::max(state->bytes, host->free_huge_bytes);
      state->known = true;
      state->read_at = now;
    }
    return state->bytes;
  };
}

}  // namespace kvarve
