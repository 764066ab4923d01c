#include "services/local/listener.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kGroupBufferBytes = 1 << 16;

absl::Status Failed(const std::string& path, const char* what) {
  return absl::UnavailableError(absl::StrCat(path, ": ", what, ": ", std::strerror(errno)));
}

absl::StatusOr<sockaddr_un> Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path[0] != '/' || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path \"", path,
                                                   "\": must be absolute and shorter than ",
                                                   sizeof(address.sun_path), " bytes"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::Status PrepareFolder(const std::string& folder, std::optional<gid_t> group) {
  if (::mkdir(folder.c_str(), 0750) == 0) {
    // The umask may have taken the group's bits.
    if (::chmod(folder.c_str(), 0750) != 0) return Failed(folder, "chmod");
    if (group.has_value() && ::chown(folder.c_str(), -1, *group) != 0) {
      return Failed(folder, "chown to group kvarve");
    }
    return absl::OkStatus();
  }
  if (errno != EEXIST) return Failed(folder, "mkdir");
  struct stat st;
  if (::stat(folder.c_str(), &st) != 0) return Failed(folder, "stat");
  if (!S_ISDIR(st.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(folder, ": is not a folder"));
  }
  if ((st.st_mode & S_IWOTH) != 0 && (st.st_mode & S_ISVTX) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, ": everybody may write in it and could replace the socket (chmod 750)"));
  }
  return absl::OkStatus();
}

// The lock, with this process's pid written in.
absl::StatusOr<UniqueFd> TakeLock(const std::string& socket_path) {
  const std::string path = socket_path + ".lock";
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid() && errno == EACCES) {
    return absl::PermissionDeniedError(absl::StrCat(
        path,
        ": this user may not write in the folder: give --socket.path another one, or run as "
        "the folder's owner"));
  }
  if (!lock.valid()) return Failed(path, "open");
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Failed(path, "flock");
    char text[32] = {};
    const ssize_t n = ::pread(lock.get(), text, sizeof(text) - 1, 0);
    const std::string pid(text, n > 0 ? std::strspn(text, "0123456789") : 0);
    return absl::AlreadyExistsError(
        absl::StrCat("another kvarved (pid ", pid.empty() ? "unknown" : pid, ") serves ",
                     socket_path, ": stop it, or give this one another socket path"));
  }
  const std::string pid = absl::StrCat(::getpid(), "\n");
  if (::ftruncate(lock.get(), 0) != 0 ||
      ::pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return Failed(path, "write");
  }
  return lock;
}

// With the lock held: what lies at the path is a dead daemon's, or somebody else's.
absl::Status RemoveStale(const std::string& path, const sockaddr_un& address) {
  struct stat st;
  if (::lstat(path.c_str(), &st) != 0) {
    return errno == ENOENT ? absl::OkStatus() : Failed(path, "stat");
  }
  if (!S_ISSOCK(st.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": exists and is not a socket"));
  }
  UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return Failed(path, "socket");
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN || errno == EPROTOTYPE) {
    return absl::AlreadyExistsError(absl::StrCat(path, ": another program listens on it"));
  }
  return ::unlink(path.c_str()) == 0 ? absl::OkStatus() : Failed(path, "unlink");
}

// Whether this process may make `group` the group of a file of its own.
bool MayGiveTo(gid_t group) {
  if (::geteuid() == 0 || ::getegid() == group) return true;
  std::vector<gid_t> groups(static_cast<size_t>(std::max(::getgroups(0, nullptr), 0)));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<size_t>(std::max(count, 0)));
  return std::ranges::find(groups, group) != groups.end();
}

}  // namespace

std::optional<gid_t> KvarveGroup() {
  std::vector<char> buffer(kGroupBufferBytes);
  struct group entry;
  struct group* found = nullptr;
  if (::getgrnam_r("kvarve", &entry, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr) {
    return std::nullopt;
  }
  if (!MayGiveTo(found->gr_gid)) {
    KvLog(LogLevel::kWarning, "the socket stays with the daemon's own group",
          {{"why", "the daemon is neither root nor in the group kvarve"},
           {"allow_others_by", "socket.allow_uids, socket.allow_gids"}});
    return std::nullopt;
  }
  return found->gr_gid;
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Bind(const std::string& path,
                                                         std::optional<gid_t> group) {
  KV_ASSIGN_OR_RETURN(const sockaddr_un address, Address(path));
  KV_RETURN_IF_ERROR(PrepareFolder(path.substr(0, path.rfind('/')), group));
  std::unique_ptr<Listener> listener(new Listener());
  KV_ASSIGN_OR_RETURN(listener->lock_, TakeLock(path));
  KV_RETURN_IF_ERROR(RemoveStale(path, address));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return Failed(path, "socket");
  // Never, not even for a moment, more than 0660.
  const mode_t umask_before = ::umask(0117);
  const int bound =
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int bind_errno = errno;
  ::umask(umask_before);
  if (bound != 0) {
    errno = bind_errno;
    return Failed(path, "bind");
  }
  struct stat st;
  if (::lstat(path.c_str(), &st) != 0) return Failed(path, "stat");
  listener->path_ = path;
  listener->device_ = st.st_dev;
  listener->inode_ = st.st_ino;
  if (group.has_value() && ::lchown(path.c_str(), -1, *group) != 0) {
    return Failed(path, "chown to group kvarve");
  }
  if (::listen(socket.get(), kBacklog) != 0) return Failed(path, "listen");
  listener->socket_ = std::move(socket);
  return listener;
}

Listener::~Listener() {
  struct stat st;
  if (!path_.empty() && ::lstat(path_.c_str(), &st) == 0 && st.st_dev == device_ &&
      st.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
}

}  // namespace kvarve
