#include "services/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "storage/base/unique_fd.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MetricsServerTest : public ::testing::Test {
 protected:
  void Start(uint16_t port = 0, bool with_page = false) {
    MetricsServerOptions options;
    if (with_page) options.status_json = [] { return std::string("{\"a\":1}"); };
    options.listen = {.host = "127.0.0.1", .port = port, .is_loopback = true};
    options.metrics = [this] { return "scrapes " + std::to_string(++scrapes_) + "\n"; };
    options.ready = [this]() -> absl::StatusOr<std::string> {
      if (!is_ready_) return absl::UnavailableError("is stopping");
      return "ok; in a moment more so";
    };
    auto server = MetricsServer::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  httplib::Result Get(const std::string& path) {
    return httplib::Client("127.0.0.1", server_->port()).Get(path);
  }

  std::atomic<int> scrapes_{0};
  std::atomic<bool> is_ready_{true};
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, ServesThreePaths) {
  Start();
  const httplib::Result metrics = Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  EXPECT_EQ(metrics->body, "scrapes 1\n");
  EXPECT_THAT(metrics->get_header_value("Content-Type"), HasSubstr("version=0.0.4"));
  EXPECT_EQ(Get("/healthz")->status, 200);
  EXPECT_EQ(Get("/readyz")->status, 200);
  EXPECT_EQ(Get("/")->status, 404);
  EXPECT_EQ(
      httplib::Client("127.0.0.1", server_->port()).Post("/metrics", "", "text/plain")->status,
      404);
}

TEST_F(MetricsServerTest, TheStatusPageAsksThisServerAlone) {
  Start(0, /*with_page=*/true);
  const httplib::Result page = Get("/"), json = Get("/status.json");
  ASSERT_TRUE(page && json);
  EXPECT_EQ(page->status, 200);
  EXPECT_THAT(page->body, HasSubstr("fetch(\"status.json\")"));
  EXPECT_THAT(page->body, Not(HasSubstr("https://")));
  EXPECT_THAT(page->get_header_value("Content-Security-Policy"), HasSubstr("default-src 'none'"));
  EXPECT_EQ(json->body, "{\"a\":1}");
  EXPECT_EQ(json->get_header_value("Content-Type"), "application/json");
  EXPECT_EQ(httplib::Client("127.0.0.1", server_->port())
                .Post("/status.json", "{}", "text/plain")
                ->status,
            404);
}

TEST_F(MetricsServerTest, NotReadyIs503WithTheReason) {
  Start();
  is_ready_ = false;
  const httplib::Result ready = Get("/readyz");
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->status, 503);
  EXPECT_EQ(ready->body, "is stopping\n");
  EXPECT_EQ(Get("/healthz")->status, 200);
}

TEST_F(MetricsServerTest, ASecondServerOnThePortIsRefused) {
  Start();
  MetricsServerOptions options;
  options.listen = {.host = "127.0.0.1", .port = server_->port(), .is_loopback = true};
  const absl::Status taken = MetricsServer::Start(std::move(options)).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(taken.message()),
              HasSubstr("127.0.0.1:" + std::to_string(server_->port())));
}

TEST_F(MetricsServerTest, AnAddressOfAnotherHostIsRefused) {
  MetricsServerOptions options;
  options.listen = {.host = "192.0.2.1", .port = 0, .is_loopback = false};
  EXPECT_EQ(MetricsServer::Start(std::move(options)).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(MetricsServerTest, ManyScrapersAtOnce) {
  Start();
  constexpr int kScrapers = 8, kEach = 10;
  std::vector<std::thread> scrapers;
  std::atomic<int> good{0};
  for (int i = 0; i < kScrapers; ++i) {
    scrapers.emplace_back([&] {
      for (int j = 0; j < kEach; ++j) {
        const httplib::Result result = Get("/metrics");
        if (result && result->status == 200) ++good;
      }
    });
  }
  for (std::thread& scraper : scrapers) scraper.join();
  EXPECT_EQ(good, kScrapers * kEach);
  EXPECT_EQ(scrapes_, kScrapers * kEach);
}

// More silent connections than threads and queue hold: stopping ends though none of them says a
// word.
TEST_F(MetricsServerTest, StopsWithSilentConnections) {
  Start();
  std::vector<UniqueFd> silent;
  for (size_t i = 0; i < kHttpThreads + kHttpQueueMax + 4; ++i) {
    silent.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(
        ::connect(silent.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  std::thread stopping([this] { server_->Stop(); });
  silent.clear();
  stopping.join();
  server_->Stop();
}

TEST_F(MetricsServerTest, StopsAtOnceAndFreesThePort) {
  Start();
  const uint16_t port = server_->port();
  server_->Stop();
  server_.reset();
  Start(port);
  EXPECT_EQ(Get("/healthz")->status, 200);
}

}  // namespace
}  // namespace kvarve
