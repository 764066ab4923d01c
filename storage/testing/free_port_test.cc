#include "storage/testing/free_port.h"

#include <fstream>
#include <set>

#include "gtest/gtest.h"

namespace kvarve {
namespace {

TEST(FreePortTest, IsNoneThatTheKernelGivesToConnections) {
  int first = 0, last = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first >> last;
  std::set<int> ports;
  for (int i = 0; i < 50; ++i) {
    const int port = FreePort();
    ASSERT_GT(port, 0);
    ports.insert(port);
    // Where it leaves hardly any other, there is no choice.
    if (first > 11'000) {
      EXPECT_TRUE(port < first || port > last) << port;
    }
  }
  EXPECT_GT(ports.size(), 1u);
}

}  // namespace
}  // namespace kvarve
