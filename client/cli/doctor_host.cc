// doctor's checks of the host and of the daemon on it.
#include <fcntl.h>
#include <grp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_format.h"
#include "client/cli/doctor.h"
#include "client/cli/output.h"
#include "client/local/messages.h"
#include "storage/base/unique_fd.h"
#include "storage/base/units.h"

namespace kvarve::cli {
namespace {

constexpr uint64_t kMemlockBytesMin = 64 * kMiB;
constexpr size_t kFileBytesMax = 64 * 1024;
constexpr double kCapacityShareMax = 0.8;

std::string GroupText(gid_t gid) {
  const group* const found = ::getgrgid(gid);
  return found != nullptr ? absl::StrFormat("%s (gid %d)", found->gr_name, gid)
                          : absl::StrFormat("gid %d", gid);
}

// How this user gets in. Nobody should run an engine with root's group.
std::string JoinText(gid_t gid) {
  return gid != 0 ? "run the engine with group " + GroupText(gid)
                  : "make a group for it, with the engine's user in it (groupadd --system kvarve; "
                    "usermod -aG kvarve USER), and start kvarved again";
}

std::string WhoIAm() { return absl::StrFormat("uid %d, gid %d", ::geteuid(), ::getegid()); }

// "[always] advise never" -> "always".
std::string Chosen(const std::string& text) {
  const size_t open = text.find('['), close = text.find(']');
  return open == std::string::npos || close == std::string::npos || close < open
             ? ""
             : text.substr(open + 1, close - open - 1);
}

// The number behind "HugePages_Free:" of meminfo.
uint64_t MeminfoNumber(const std::string& meminfo, const std::string& name) {
  const size_t at = meminfo.find(name + ":");
  return at == std::string::npos
             ? 0
             : std::strtoull(meminfo.c_str() + at + name.size() + 1, nullptr, 10);
}

// Since Linux 6.1 kvarved asks for single huge pages (MADV_COLLAPSE), which `never` does not
// refuse.
bool CanCollapse(const HostView& host) {
  int major = 0, minor = 0;
  const std::string release = host.Read("/proc/sys/kernel/osrelease");
  return std::sscanf(release.c_str(), "%d.%d", &major, &minor) == 2 &&
         (major > 6 || (major == 6 && minor >= 1));
}

void CheckPages(const HostView& host, Findings* findings) {
  const std::string meminfo = host.Read("/proc/meminfo");
  const uint64_t total = MeminfoNumber(meminfo, "HugePages_Total"),
                 free = MeminfoNumber(meminfo, "HugePages_Free");
  const std::string thp = Chosen(host.Read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  const bool collapses = thp == "never" && CanCollapse(host);
  const bool has_thp =
      thp == "always" || thp == "advise" || thp == "within_size" || thp == "force" || collapses;
  const std::string reserved =
      absl::StrFormat("%d of %d reserved huge pages are free", free, total);
  if (total > 0) {
    findings->push_back({"host", "huge pages", Level::kOk, reserved, ""});
  } else {
    findings->push_back(
        {"host", "huge pages", has_thp ? Level::kOk : Level::kWarning, "none reserved",
         has_thp ? "" : "for large caches reserve some: sysctl vm.nr_hugepages=(bytes / 2 MiB)"});
  }
  findings->push_back({"host", "transparent huge pages for shared memory",
                       has_thp || total > 0 ? Level::kOk : Level::kWarning,
                       thp.empty() ? "this kernel has none"
                       : collapses ? "never; kvarved asks for single ones"
                                   : thp,
                       has_thp || total > 0 || thp.empty()
                           ? ""
                           : "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"});
}

void CheckMemlock(Findings* findings) {
  rlimit limit;
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return;
  const bool is_unlimited = limit.rlim_cur == RLIM_INFINITY;
  const bool is_enough = is_unlimited || limit.rlim_cur >= kMemlockBytesMin;
  findings->push_back(
      {"host", "locked memory", is_enough ? Level::kOk : Level::kWarning,
       is_unlimited ? "unlimited" : FormatBytes(limit.rlim_cur),
       is_enough
           ? ""
           : "an engine that registers memory with its GPU may need more: ulimit -l unlimited, "
             "LimitMEMLOCK=infinity, or CAP_IPC_LOCK"});
}

void CheckSendBuffer(const HostView& host, Findings* findings) {
  const std::string text = host.Read("/proc/sys/net/core/wmem_max");
  if (text.empty()) return;
  const uint64_t bytes = std::strtoull(text.c_str(), nullptr, 10);
  // The kernel counts its own overhead: it grants twice of what is asked for, and needs about that.
  const bool is_enough = 2 * bytes >= 2 * local::kMaxMessageBytes;
  findings->push_back(
      {"host", "socket send buffer (net.core.wmem_max)", is_enough ? Level::kOk : Level::kWarning,
       FormatBytes(bytes),
       is_enough
           ? ""
           : "long prompts are looked up in several messages; sysctl net.core.wmem_max=1048576"});
}

void CheckIoUring(const HostView& host, Findings* findings) {
  const std::string disabled = host.Read("/proc/sys/kernel/io_uring_disabled");
  alignas(8) unsigned char params[256] = {};
  const UniqueFd ring(static_cast<int>(::syscall(SYS_io_uring_setup, 2, params)));
  const int error = errno;
  if (ring.valid()) {
    findings->push_back({"host", "io_uring", Level::kOk, "allowed", ""});
    return;
  }
  findings->push_back(
      {"host", "io_uring", Level::kOk,
       absl::StrFormat(
           "not allowed here (%s%s); the host tier does not need it", std::strerror(error),
           disabled.empty() ? "" : ", kernel.io_uring_disabled=" + disabled.substr(0, 1)),
       ""});
}

}  // namespace

std::string HostView::Read(const std::string& path) const {
  std::ifstream file(root + path);
  std::string text(kFileBytesMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

void CheckSocket(const std::string& path, Findings* findings) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  struct stat info;
  if (::stat(folder.c_str(), &info) != 0) {
    const bool is_denied = errno == EACCES;
    findings->push_back(
        {"host", "socket folder", Level::kProblem, folder + ": " + std::strerror(errno),
         is_denied ? "this user (" + WhoIAm() + ") may not look there: join the daemon's group"
                   : "start kvarved, or mount the host's " + folder + " into this container"});
    return;
  }
  if ((info.st_mode & S_IWOTH) != 0) {
    findings->push_back({"host", "socket folder", Level::kProblem, folder + " lets everybody write",
                         "anybody could put another socket there: chmod 0750 " + folder});
  } else if (::access(folder.c_str(), X_OK) != 0) {
    findings->push_back({"host", "socket folder", Level::kProblem,
                         absl::StrFormat("%s (mode %04o) does not let %s in", folder,
                                         info.st_mode & 07777, WhoIAm()),
                         JoinText(info.st_gid)});
    return;
  } else {
    findings->push_back({"host", "socket folder", Level::kOk,
                         absl::StrFormat("%s, mode %04o, group %s", folder, info.st_mode & 07777,
                                         GroupText(info.st_gid)),
                         ""});
  }
  if (::stat(path.c_str(), &info) != 0) {
    findings->push_back(
        {"host", "socket", Level::kProblem, path + ": " + std::strerror(errno), "start kvarved"});
    return;
  }
  if (!S_ISSOCK(info.st_mode)) {
    findings->push_back(
        {"host", "socket", Level::kProblem, path + " is no socket", "remove it and start kvarved"});
    return;
  }
  const bool may_write = ::access(path.c_str(), R_OK | W_OK) == 0;
  findings->push_back(
      {"host", "socket", may_write ? Level::kOk : Level::kProblem,
       absl::StrFormat("mode %04o, uid %d, group %s", info.st_mode & 07777, info.st_uid,
                       GroupText(info.st_gid)),
       may_write ? "" : "this user (" + WhoIAm() + ") may not connect: " + JoinText(info.st_gid)});
}

void CheckHost(const HostView& host, Findings* findings) {
  CheckPages(host, findings);
  CheckMemlock(findings);
  CheckSendBuffer(host, findings);
  CheckIoUring(host, findings);
}

bool VersionsFit(const std::string& a, const std::string& b) {
  int major[2] = {-1, -2}, minor[2] = {0, 0};
  const std::string* const texts[] = {&a, &b};
  for (int i = 0; i < 2; ++i) {
    char dot = 0;
    std::istringstream in(*texts[i]);
    if (!(in >> major[i] >> dot >> minor[i]) || dot != '.') return a == b;
  }
  return major[0] == major[1] && std::abs(minor[0] - minor[1]) <= 1;
}

void CheckDaemon(const Json& status, const HostView& host, Findings* findings) {
  const std::string version = TextOf(status, "version");
  const bool fits = VersionsFit(version, KVARVE_VERSION);
  findings->push_back(
      {"daemon", "version", fits ? Level::kOk : Level::kWarning,
       "daemon " + version + ", client " KVARVE_VERSION,
       fits ? ""
            : "update the older one: only neighbouring minor versions are made for each other"});

  const uint64_t capacity = Number(status, "capacity_bytes"),
                 budget = Number(status, "host_budget_bytes");
  if (budget > 0) {
    const bool is_good =
        static_cast<double>(capacity) <= kCapacityShareMax * static_cast<double>(budget);
    findings->push_back(
        {"daemon", "memory", is_good ? Level::kOk : Level::kProblem,
         absl::StrFormat("%s for blocks, of %s that the host or control group can give (%s)",
                         FormatBytes(capacity), FormatBytes(budget), PercentText(capacity, budget)),
         is_good ? "" : "kvarve resize 40%"});
  }
  const uint64_t available = MeminfoNumber(host.Read("/proc/meminfo"), "MemAvailable") * kKiB;
  const uint64_t taken = Number(status, "chunk_bytes"),
                 missing = capacity - std::min(capacity, taken);
  if (available > 0 && missing > available) {
    findings->push_back(
        {"daemon", "free memory", Level::kWarning,
         absl::StrFormat("%s of the capacity are not taken yet, but the host has only %s",
                         FormatBytes(missing), FormatBytes(available)),
         "the cache stays smaller than configured; give the engine less or kvarve resize"});
  }
  const uint64_t quarantined = Number(status, "quarantined_bytes");
  const bool is_free = quarantined * 4 <= capacity;
  findings->push_back(
      {"daemon", "quarantine", is_free ? Level::kOk : Level::kWarning,
       FormatBytes(quarantined) + " held by processes that lost their connection",
       is_free ? "" : "end hung engine processes; `kvarve status` shows ended sessions"});
}

}  // namespace kvarve::cli
