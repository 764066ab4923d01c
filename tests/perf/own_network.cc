#include "tests/perf/own_network.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>
#include <fstream>

#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

namespace kvarve::perf {
namespace {

constexpr char kCongestionControl[] = "/proc/sys/net/ipv4/tcp_congestion_control";

std::string CongestionControl() {
  std::string name;
  std::ifstream(kCongestionControl) >> name;
  return name;
}

bool RaiseLoopback() {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  if (::ioctl(socket.get(), SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags |= IFF_UP;
  return ::ioctl(socket.get(), SIOCSIFFLAGS, &request) == 0;
}

}  // namespace

std::string EnterOwnNetwork() {
  const UniqueFd before(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
  bool is_own = before.valid() && ::unshare(CLONE_NEWNET) == 0;
  if (is_own && !RaiseLoopback()) {  // CAP_SYS_ADMIN without CAP_NET_ADMIN
    KV_CHECK(::setns(before.get(), CLONE_NEWNET) == 0);
    is_own = false;
  }
  if (!is_own) {
    return "the machine's network, under " + CongestionControl() +
           "; root gets one of its own under cubic";
  }
  std::ofstream(kCongestionControl) << "cubic";
  return "a network of its own, under " + CongestionControl();
}

}  // namespace kvarve::perf
