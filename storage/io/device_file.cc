#include "storage/io/device_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>

#include "absl/strings/str_format.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/io/io_request.h"

namespace kvarve {
namespace {

std::string ErrorText(int error) { return std::generic_category().message(error); }

absl::Status OpenError(const std::string& path, int error) {
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(absl::StrFormat(
          "%s does not exist: make it with 'kvarve device format %s --size SIZE'", path, path));
    case ELOOP:
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s is a symbolic link: name the file or block device that it points to", path));
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(absl::StrFormat(
          "%s: %s: give the user of kvarved read and write access", path, ErrorText(error)));
    case EISDIR:
      return absl::FailedPreconditionError(
          absl::StrFormat("%s is a directory: name a file in it", path));
    case EBUSY:
      return absl::FailedPreconditionError(
          absl::StrFormat("%s is in use: unmount it, or stop who uses it", path));
    default:
      return absl::InternalError(absl::StrFormat("%s: open: %s", path, ErrorText(error)));
  }
}

// What the filesystem cannot have room for is refused before it takes all that there is, from
// whoever else writes there. An upper bound: what is reserved for root counts as free.
absl::Status CheckSpace(const DeviceFile& file, uint64_t bytes) {
  struct stat facts;
  struct statvfs space;
  if (::fstat(file.fd.get(), &facts) != 0 || ::fstatvfs(file.fd.get(), &space) != 0)
    return absl::OkStatus();
  if (space.f_blocks == 0) return absl::OkStatus();  // it does not say
  const uint64_t held = static_cast<uint64_t>(facts.st_blocks) * 512;
  const uint64_t free = static_cast<uint64_t>(space.f_bfree) * space.f_frsize;
  if (bytes <= held || bytes - held <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("%s: no space for %s: its filesystem has %s free; free some, or ask for less",
                      file.path, FormatBytes(bytes), FormatBytes(free)));
}

int Open(const std::string& path, int flags) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags, 0600);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// Some filesystems take the flag and refuse the reads.
bool DirectReadWorks(int fd) {
  void* page = nullptr;
  if (::posix_memalign(&page, kIoUnit, kIoUnit) != 0) return false;
  const std::unique_ptr<void, decltype(&std::free)> owner(page, &std::free);
  return ::pread(fd, page, kIoUnit, 0) >= 0 || errno != EINVAL;
}

// A process that was killed gives its lock back some time after its end: a ring outlives it.
bool Lock(int fd, int64_t wait_nanos) {
  const int64_t end = SystemClock::Get()->NowNanos() + wait_nanos;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (SystemClock::Get()->NowNanos() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

absl::Status ReadKind(DeviceFile* file) {
  struct stat facts;
  if (::fstat(file->fd.get(), &facts) != 0) return OpenError(file->path, errno);
  if (S_ISREG(facts.st_mode)) {
    file->bytes = static_cast<uint64_t>(facts.st_size);
  } else if (S_ISBLK(facts.st_mode)) {
    file->block_device = true;
    if (::ioctl(file->fd.get(), BLKGETSIZE64, &file->bytes) != 0)
      return OpenError(file->path, errno);
  } else {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s is neither a regular file nor a block device: name one of these", file->path));
  }
  file->bytes -= file->bytes % kIoUnit;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeviceFile> OpenDeviceFile(const std::string& path,
                                          const DeviceFileOptions& options) {
  // Non-blocking: opening a pipe must not wait for its other end. It means nothing to files.
  int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (options.create ? O_CREAT : 0);
  struct stat before;
  // The kernel refuses O_EXCL without O_CREAT but for block devices, where it keeps out mounts.
  if (::lstat(path.c_str(), &before) == 0 && S_ISBLK(before.st_mode)) flags |= O_EXCL;
  DeviceFile file;
  file.path = path;
  if (options.create) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!folder.empty() && ::access(folder.c_str(), F_OK) != 0 && errno == ENOENT) {
      return absl::NotFoundError(
          absl::StrFormat("%s: there is no folder %s: make it first", path, folder.string()));
    }
  }
  if (options.direct) {
    file.fd.reset(Open(path, flags | O_DIRECT));
    file.direct = file.fd.valid();
  }
  if (!file.fd.valid()) {
    if (options.direct && errno != EINVAL) return OpenError(path, errno);
    file.fd.reset(Open(path, flags));
    if (!file.fd.valid()) return OpenError(path, errno);
  }
  KV_RETURN_IF_ERROR(ReadKind(&file));
  if (!Lock(file.fd.get(), options.lock_wait_nanos)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is in use by another process: stop the kvarved or the 'kvarve device' "
                        "command that has it open",
                        path));
  }
  if (file.direct && !DirectReadWorks(file.fd.get())) {
    const int now = ::fcntl(file.fd.get(), F_GETFL);
    if (now < 0 || ::fcntl(file.fd.get(), F_SETFL, now & ~O_DIRECT) != 0)
      return OpenError(path, errno);
    file.direct = false;
  }
  if (options.direct && !file.direct) file.fallback_reason = "the filesystem refuses O_DIRECT";
  return file;
}

absl::Status AllocateFile(DeviceFile* file, uint64_t bytes) {
  if (file->block_device) {
    if (bytes <= file->bytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s has %d bytes, %d are needed", file->path, file->bytes, bytes));
  }
  int error = bytes < file->bytes && ::ftruncate(file->fd.get(), static_cast<off_t>(bytes)) != 0
                  ? errno
                  : 0;
  if (error == 0) KV_RETURN_IF_ERROR(CheckSpace(*file, bytes));
  if (error == 0) error = ::posix_fallocate(file->fd.get(), 0, static_cast<off_t>(bytes));
  // What it was given until then is given back.
  if (error != 0 && ::ftruncate(file->fd.get(), static_cast<off_t>(file->bytes)) != 0) {
    return OpenError(file->path, errno);
  }
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s: no space for %s: free some, or ask for less", file->path, FormatBytes(bytes)));
  }
  if (error != 0) return OpenError(file->path, error);
  file->bytes = bytes;
  return absl::OkStatus();
}

}  // namespace kvarve
