// What a fork does to this library: in the child every Client is dead, its sockets are closed (so
// that the daemon sees the parent's death), and its mappings are not there (MADV_DONTFORK): nothing
// may be unmapped or locked.
//
// THREADS: any.  BLOCKS: never, but for the registry's own lock.
#ifndef KVARVE_CLIENT_CPP_FORK_GUARD_H_
#define KVARVE_CLIENT_CPP_FORK_GUARD_H_

#include <cstdint>
#include <utility>

namespace kvarve::client {

// Differs between a process and its forked child.
uint64_t ForkGeneration();
// The same, and forks are counted from now on.
uint64_t WatchForks();

// Remembers the process that made it.
class ForkStamp {
 public:
  ForkStamp() : generation_(WatchForks()) {}
  // True in a forked child of the process that made this.
  bool InChild() const { return generation_ != ForkGeneration(); }

 private:
  uint64_t generation_;
};

// A socket that a forked child closes before it runs anything else. Move-only.
class ForkClosedSocket {
 public:
  ForkClosedSocket() = default;
  // A new socket, close-on-exec and non-blocking; not valid() when the system refuses (errno says
  // why).
  static ForkClosedSocket Open(int domain, int type);
  ForkClosedSocket(ForkClosedSocket&& other) noexcept
      : stamp_(other.stamp_), fd_(std::exchange(other.fd_, -1)) {}
  ForkClosedSocket& operator=(ForkClosedSocket&& other) noexcept {
    if (this != &other) {
      Close();
      stamp_ = other.stamp_;
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~ForkClosedSocket() { Close(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  void Close();
  ForkStamp stamp_;
  int fd_ = -1;
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_FORK_GUARD_H_
