#include "storage/testing/free_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <fstream>
#include <random>

#include "storage/base/unique_fd.h"

namespace kvarve {
namespace {

constexpr int kFirstPort = 10'000;
constexpr int kTries = 100;

// 0: somebody has it. Port 0: one that the kernel chooses.
int Bind(int port) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  socklen_t size = sizeof(address);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return 0;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.sin_port);
}

}  // namespace

int FreePort() {
  int end = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> end;
  std::random_device random;
  for (int i = 0; i < kTries && end > kFirstPort; ++i) {
    const int port =
        kFirstPort + static_cast<int>(random() % static_cast<unsigned>(end - kFirstPort));
    if (Bind(port) == port) return port;
  }
  return Bind(0);
}

}  // namespace kvarve
