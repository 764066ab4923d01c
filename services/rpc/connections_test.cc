// Attacks on the TCP side: connections that say nothing, little or too slowly, and very many of
// them. Honest clients go on, and what the daemon spends is bounded.
#include "services/rpc/connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "client/identity/certificate.h"
#include "services/rpc/rpc_fixture_testing.h"
#include "storage/base/unique_fd.h"

namespace kvarve {
namespace {

// "PRI * HTTP/2.0", an empty SETTINGS frame, and a HEADERS frame of 200 bytes of which one comes.
const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string kSettings("\0\0\0\4\0\0\0\0\0", 9);
const std::string kHalfHeaders("\0\0\xc8\1\4\0\0\0\1\x82", 10);
// A TLS record of 512 bytes that begins a client's hello.
const std::string kHalfHello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);

class ConnectionsTest : public RpcFixture {
 protected:
  // A plain TCP connection from `from`; -1: refused.
  UniqueFd Connect(const char* from = "127.0.0.1") {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, from, &address.sin_addr);
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(server_->port());
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      return UniqueFd();
    }
    ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
    return socket;
  }
  static bool Say(const UniqueFd& socket, const std::string& text) {
    return ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }
  // Whether the server has ended it; reads what comes.
  static bool Ended(const UniqueFd& socket) {
    char buffer[4096];
    while (true) {
      const ssize_t got = ::recv(socket.get(), buffer, sizeof(buffer), 0);
      if (got == 0) return true;
      if (got < 0) return errno != EAGAIN;
    }
  }
  grpc::Status Hello() {
    v1::HelloRequest request;
    request.set_version_min(1);
    request.set_version_max(1);
    v1::HelloReply reply;
    return Call(&v1::KvCache::Stub::Hello, request, &reply);
  }
  static uint64_t ResidentBytes() {
    std::ifstream file("/proc/self/statm");
    uint64_t size = 0, resident = 0;
    file >> size >> resident;
    return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  }
};

TEST_F(ConnectionsTest, WhoSaysNothingOrTooSlowlyIsCut) {
  options_.connections.greeting_nanos = 400'000'000;
  Start();
  // One that has shown who it is stays, though it says nothing for as long.
  grpc::ClientContext context;
  Prepare(&context, 120);
  const auto watch = stub_->WatchEvents(&context, {});
  v1::EventBatch batch;
  ASSERT_TRUE(watch->Read(&batch));

  std::vector<UniqueFd> slow;
  for (int i = 0; i < 4; ++i) slow.push_back(Connect());
  EXPECT_TRUE(Say(slow[1], kPreface.substr(0, 11)));
  EXPECT_TRUE(Say(slow[2], kPreface + kSettings));
  EXPECT_TRUE(Say(slow[3], kPreface + kSettings + kHalfHeaders));
  EXPECT_TRUE(Eventually([&] {
    Say(slow[3], "\x41");  // drips on
    return std::ranges::all_of(slow, Ended);
  }));
  EXPECT_TRUE(Hello().ok());
  EXPECT_GE(server_->Stats().connections.silent, 2u);  // gRPC's own handshake limit may be first
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections.open == 1; }));
  context.TryCancel();
  EXPECT_EQ(watch->Finish().error_code(), grpc::CANCELLED);  // until now it was open
}

TEST_F(ConnectionsTest, HalfAHelloOfTlsIsCut) {
  const int64_t now = std::chrono::duration_cast<std::chrono::seconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  const Issued authority = NewAuthority("test", now - 60, now + 3600).value();
  const Issued server =
      IssueCertificate(authority,
                       {"server", {"kvarve://peer"}, {"127.0.0.1"}, true, now - 60, now + 3600})
          .value();
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder_ + name) << text;
    ::chmod((folder_ + name).c_str(), 0600);
    return folder_ + name;
  };
  options_.transport.certificate_file = write("/server.pem", server.certificate);
  options_.transport.key_file = write("/server.key", server.key);
  options_.transport.client_ca_file = write("/ca.pem", authority.certificate);
  options_.connections.greeting_nanos = 400'000'000;
  Start();
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 3; ++i) slow.push_back(Connect());
  EXPECT_TRUE(Say(slow[1], kHalfHello));
  EXPECT_TRUE(Say(slow[2], kHalfHello));
  EXPECT_TRUE(Eventually([&] {
    Say(slow[2], "x");
    return std::ranges::all_of(slow, Ended);
  }));
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections.open == 0; }));
  for (const char* name : {"/server.pem", "/server.key", "/ca.pem"}) {
    ::unlink((folder_ + name).c_str());
  }
}

TEST_F(ConnectionsTest, TenThousandConnectionsLeaveRoomForTheHonest) {
#ifdef __SANITIZE_ADDRESS__  // which keeps what was freed
  constexpr uint64_t kMemoryMax = 2ull << 30;
#else
  constexpr uint64_t kMemoryMax = 512ull << 20;
#endif
  constexpr size_t kWanted = 10'000, kFewest = 1000;
  constexpr uint32_t kCap = 1000;
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit before = files;
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  // Each costs this process one descriptor as a client; the server has two of each that is open.
  constexpr size_t kOthers = 3 * kCap + 1000;
  const size_t count =
      std::min<size_t>(kWanted, files.rlim_max - std::min<rlim_t>(files.rlim_max, kOthers));
  if (count < kFewest) {
    GTEST_SKIP() << "this process may open " << files.rlim_max << " files; " << kOthers + kFewest
                 << " are the fewest for " << kFewest << " connections (ulimit -Hn)";
  }
  options_.connections.connections = kCap;
  options_.connections.greeting_nanos = 600'000'000'000;
  Start();
  grpc::ClientContext context;
  Prepare(&context, 600);
  const auto watch = stub_->WatchEvents(&context, {});
  v1::EventBatch batch;
  ASSERT_TRUE(watch->Read(&batch));
  const uint64_t memory = ResidentBytes();

  std::vector<UniqueFd> flood;
  for (size_t i = 0; i < count; ++i) {
    flood.push_back(Connect());
    if (i % 2 == 0) Say(flood.back(), kPreface + kSettings);
    if (i % 1000 == 999) {
      const auto honest = v1::KvCache::NewStub(grpc::CreateChannel(
          "127.0.0.1:" + std::to_string(server_->port()), grpc::InsecureChannelCredentials()));
      grpc::ClientContext call;
      Prepare(&call, 60);
      v1::StatsReply reply;
      const grpc::Status status = honest->Stats(&call, {}, &reply);
      EXPECT_TRUE(status.ok()) << i << " " << status.error_message();
      EXPECT_LE(server_->Stats().connections.open, kCap);
    }
  }
  const auto opened = std::ranges::count_if(flood, &UniqueFd::valid);
  std::printf("%zu connections were opened of %zu wanted; RLIMIT_NOFILE is %llu\n",
              static_cast<size_t>(opened), kWanted,
              static_cast<unsigned long long>(files.rlim_max));
  EXPECT_GE(static_cast<size_t>(opened), kFewest);
  const ConnectionStats stats = server_->Stats().connections;
  EXPECT_GE(stats.accepted, count / 2);  // some waited in the kernel's queue, pushed out by none
  EXPECT_GE(stats.pushed_out + kCap, count / 2);
  EXPECT_LT(ResidentBytes() - std::min(memory, ResidentBytes()), kMemoryMax);
  // Whoever had shown who it is was never touched.
  const v1::Namespace ns = Open(TestDescriptor(4096));
  EXPECT_TRUE(Write(OpenOf(ns, std::string(32, 'a')), {std::string(4096, 'x')}).status.ok());
  while (batch.events_size() == 0) ASSERT_TRUE(watch->Read(&batch));
  EXPECT_EQ(batch.events(0).kind(), v1::EVENT_STORED);
  context.TryCancel();
  watch->Finish();
  flood.clear();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(ConnectionsTest, TheGreediestAddressLosesFirst) {
  options_.connections.connections = 8;
  Start();
  const UniqueFd modest = Connect("127.0.0.2");
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections.open == 1; }));
  std::vector<UniqueFd> greedy;
  for (int i = 0; i < 50; ++i) greedy.push_back(Connect("127.0.0.3"));
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections.pushed_out == 43; }));
  EXPECT_FALSE(Ended(modest));
  EXPECT_EQ(server_->Stats().connections.open, 8u);
  EXPECT_TRUE(Eventually([&] { return std::ranges::count_if(greedy, Ended) == 43; }));
  EXPECT_FALSE(Ended(greedy.back()));
}

TEST_F(ConnectionsTest, WhenAllAreProvenANewOneIsRefused) {
  options_.connections.connections = 1;
  Start();
  EXPECT_TRUE(Hello().ok());
  const UniqueFd late = Connect();
  EXPECT_TRUE(Eventually([&] { return Ended(late); }));
  EXPECT_EQ(server_->Stats().connections.refused, 1u);
  EXPECT_TRUE(Hello().ok());
  EXPECT_EQ(server_->Stats().connections.pushed_out, 0u);
}

}  // namespace
}  // namespace kvarve
