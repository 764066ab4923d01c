#include "services/metrics/metrics_server.h"

#include <httplib.h>

#include <atomic>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "services/metrics/status_page.h"
#include "storage/base/mutex.h"

namespace kvarve {
namespace {

constexpr char kText[] = "text/plain; charset=utf-8";
constexpr char kPrometheusText[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kHtml[] = "text/html; charset=utf-8";
constexpr char kJson[] = "application/json";
// The page has its script and style in itself, and asks this server alone.
constexpr char kPagePolicy[] =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
constexpr size_t kMaxRequestBodyBytes = 1024;

// Connections between the thread that accepts and those that answer. The library's own pool queues
// without end; here the accepting thread waits for room.
class HttpQueue {
 public:
  // Once closed, connections that wait get no answer: a client that sends nothing would hold up the
  // end.
  void Push(std::function<void()> task) {
    MutexLock lock(&mutex_);
    while (tasks_.size() >= kHttpQueueMax && !is_closed_) changed_.wait(mutex_);
    if (is_closed_) return;
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
  // False: closed.
  bool Pop(std::function<void()>* task) {
    MutexLock lock(&mutex_);
    while (tasks_.empty() && !is_closed_) changed_.wait(mutex_);
    if (tasks_.empty()) return false;
    *task = std::move(tasks_.front());
    tasks_.pop_front();
    changed_.notify_all();
    return true;
  }
  void Close() {
    MutexLock lock(&mutex_);
    is_closed_ = true;
    tasks_.clear();
    changed_.notify_all();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
};

class HttpThreads final : public httplib::TaskQueue {
 public:
  // `queue` outlives it.
  explicit HttpThreads(HttpQueue* queue) : queue_(queue) {
    for (size_t i = 0; i < kHttpThreads; ++i) {
      threads_.emplace_back([queue] {
        std::function<void()> task;
        while (queue->Pop(&task)) task();
      });
    }
  }
  void enqueue(std::function<void()> task) override { queue_->Push(std::move(task)); }
  void shutdown() override {
    queue_->Close();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  HttpQueue* const queue_;
  std::vector<std::thread> threads_;
};

void ServeStatusPage(const MetricsServerOptions& kept, httplib::Server* server) {
  const auto safe = [](httplib::Response* response) {
    response->set_header("Content-Security-Policy", kPagePolicy);
    response->set_header("X-Content-Type-Options", "nosniff");
    response->set_header("Cache-Control", "no-store");
  };
  server->Get("/", [safe](const httplib::Request&, httplib::Response& response) {
    safe(&response);
    response.set_content(kStatusPage, sizeof(kStatusPage) - 1, kHtml);
  });
  server->Get("/status.json", [&kept, safe](const httplib::Request&, httplib::Response& response) {
    safe(&response);
    response.set_content(kept.status_json(), kJson);
  });
}

void Answer(const absl::StatusOr<std::string>& text, httplib::Response* response) {
  response->status = text.ok() ? 200 : 503;
  response->set_content((text.ok() ? *text : std::string(text.status().message())) + "\n", kText);
}

}  // namespace

struct MetricsServer::Rep {
  MetricsServerOptions options;
  HttpQueue queue;
  httplib::Server server;
  std::thread thread;
  std::atomic<bool> has_ended{false};
  int port = 0;
};

MetricsServer::MetricsServer(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(MetricsServerOptions options) {
  auto rep = std::make_unique<Rep>();
  rep->options = std::move(options);
  httplib::Server& server = rep->server;
  const MetricsServerOptions& kept = rep->options;
  server.new_task_queue = [rep = rep.get()] { return new HttpThreads(&rep->queue); };
  server.set_keep_alive_max_count(
      1);  // one answer a connection: a thread is never held by an idle one
  server.set_read_timeout(kHttpSeconds);
  server.set_write_timeout(kHttpSeconds);
  server.set_payload_max_length(kMaxRequestBodyBytes);
  // Not SO_REUSEPORT, the library's default: two daemons would share the port.
  server.set_socket_options([](socket_t socket) {
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  });
  server.Get("/metrics", [&kept](const httplib::Request&, httplib::Response& response) {
    response.set_content(kept.metrics(), kPrometheusText);
  });
  server.Get("/healthz",
             [](const httplib::Request&, httplib::Response& response) { Answer("ok", &response); });
  server.Get("/readyz", [&kept](const httplib::Request&, httplib::Response& response) {
    Answer(kept.ready(), &response);
  });
  if (kept.status_json != nullptr) ServeStatusPage(kept, &server);

  const ListenAddress& listen = kept.listen;
  rep->port = listen.port;
  const bool is_bound = listen.port == 0 ? (rep->port = server.bind_to_any_port(listen.host)) > 0
                                         : server.bind_to_port(listen.host, listen.port);
  if (!is_bound) {
    return absl::UnavailableError(
        absl::StrFormat("metrics.listen: cannot listen on %s; is another process on that port, and "
                        "is the address this host's?",
                        listen.ToString()));
  }
  rep->thread = std::thread([rep = rep.get()] {
    rep->server.listen_after_bind();
    rep->has_ended.store(true);
  });
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(rep)));
}

MetricsServer::~MetricsServer() { Stop(); }

uint16_t MetricsServer::port() const { return static_cast<uint16_t>(rep_->port); }

void MetricsServer::Stop() {
  if (!rep_->thread.joinable()) return;
  // stop() before the loop runs would be lost.
  while (!rep_->server.is_running() && !rep_->has_ended.load()) std::this_thread::yield();
  rep_->queue.Close();
  rep_->server.stop();
  rep_->thread.join();
}

}  // namespace kvarve
