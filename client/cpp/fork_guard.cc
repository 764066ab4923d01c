#include "client/cpp/fork_guard.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "storage/base/status_macros.h"

namespace kvarve::client {
namespace {

std::atomic<uint64_t> generation{1};

// Locked over every fork, so that the child finds it whole. Leaked: forks may come after static
// destructors.
struct Registry {
  std::mutex mutex;
  std::vector<int> sockets;
};

Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

void BeforeFork() { TheRegistry().mutex.lock(); }
void AfterForkInParent() { TheRegistry().mutex.unlock(); }
void AfterForkInChild() {
  generation.fetch_add(1, std::memory_order_relaxed);
  Registry& registry = TheRegistry();
  for (int socket : registry.sockets) ::close(socket);
  registry.sockets.clear();
  registry.mutex.unlock();
}

void InstallOnce() {
  static const bool installed =
      ::pthread_atfork(&BeforeFork, &AfterForkInParent, &AfterForkInChild) == 0;
  KV_CHECK(installed);
}

}  // namespace

uint64_t ForkGeneration() { return generation.load(std::memory_order_relaxed); }

uint64_t WatchForks() {
  InstallOnce();
  return ForkGeneration();
}

ForkClosedSocket ForkClosedSocket::Open(int domain, int type) {
  InstallOnce();
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  ForkClosedSocket socket;
  socket.fd_ = ::socket(domain, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket.fd_ >= 0) registry.sockets.push_back(socket.fd_);
  return socket;
}

void ForkClosedSocket::Close() {
  if (fd_ < 0 || stamp_.InChild()) return;  // in a child the number may be another file by now
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  std::erase(registry.sockets, fd_);
  ::close(std::exchange(fd_, -1));
}

}  // namespace kvarve::client
