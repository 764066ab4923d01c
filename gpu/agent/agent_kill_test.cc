// Goal: an agent or an engine that is killed, or an agent that hangs, costs the other nothing: no
// wrong byte, no wait, and afterwards every descriptor, mapping, registration and allocation is
// back at what it was. Method: each a process of its own with a fake driver of its own; this
// process, without threads, forks, kills and compares.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <random>
#include <thread>

#include "gpu/agent/agent_client.h"
#include "gpu/agent/agent_pages_testing.h"
#include "gpu/agent/agent_server.h"

namespace kvarve {
namespace {

using fake::FakeDriver;
using testing::AgentPages;
using testing::FakeOptions;
using testing::Holdings;
using testing::kAgentLayout;
using testing::kPatience;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kCycles = 10;
#else
constexpr int kCycles = 100;
#endif

// A forked process, with a socket to say and to hear words on.
class Child {
 public:
  explicit Child(const std::function<void(int socket)>& life) {
    int ends[2];
    KV_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    socket_.reset(ends[0]);
    const UniqueFd its(ends[1]);
    pid_ = ::fork();
    KV_CHECK(pid_ >= 0);
    if (pid_ > 0) return;
    socket_.reset();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    life(its.get());
    ::_exit(0);
  }
  ~Child() { Kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }
  void Say(const std::string& word) {
    ::send(socket_.get(), word.data(), word.size(), MSG_NOSIGNAL);
  }
  std::string Hear() {  // "" when it is gone
    char word[512];
    const ssize_t n = ::recv(socket_.get(), word, sizeof word, 0);
    return n > 0 ? std::string(word, static_cast<size_t>(n)) : "";
  }
  std::string Ask(const std::string& word) { return Say(word), Hear(); }
  int Wait() {
    int status = 0;
    if (pid_ > 0) ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }
  // Until all its threads are: a thread may go on for a while after the signal was sent.
  void Stop() {
    int status = 0;
    KV_CHECK(::kill(pid_, SIGSTOP) == 0);
    KV_CHECK(::waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status));
  }
  void Kill() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    Wait();
  }

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
};

void SayTo(int socket, const std::string& word) {
  ::send(socket, word.data(), word.size(), MSG_NOSIGNAL);
}

std::string SocketPath() {
  return ::testing::TempDir() + "kvarve_agent_kill_" + std::to_string(::getpid());
}

// Serves; for each word it hears it waits until no engine is there and says what it has.
void AgentLife(const std::string& path, MemoryKind kind, int test) {
  FakeDriver driver(FakeOptions(kind));
  auto device = OpenCudaDevice(driver.table(), "", testing::kAgentModule).value();
  AgentServer::Options options;
  options.socket_path = path;
  options.staging_bytes = 4 * kAgentLayout.BlockBytes();
  const auto server = AgentServer::Start(driver.table(), device, options).value();
  SayTo(test, "up");
  char word[16];
  while (::recv(test, word, sizeof word, 0) > 0) {
    AgentServer::Stats stats = server->stats();
    for (; stats.sessions > 0; stats = server->stats()) std::this_thread::yield();
    std::string text = Holdings::Now().Text() + "; " + driver.leaks();
    for (const std::string& diagnostic : driver.diagnostics()) text += "; " + diagnostic;
    if (stats.attached > 0) text += "; attached";
    SayTo(test, text);
  }
}

// One move each way at random pages. False: bytes were wrong.
bool Turn(AgentClient* client, AgentPages* pages, uint64_t generation, bool scatter,
          absl::Status* end) {
  const std::vector<int64_t> ids = pages->RandomIds();
  std::vector<std::byte> block;
  if (scatter) {
    block = pages->Scattered(ids);
    std::memcpy(client->slot(0).data(), block.data(), block.size());
  }
  const auto ticket = client->Start(
      generation, scatter ? MoveDirection::kScatter : MoveDirection::kGather, 0, ids, kPatience);
  *end = ticket.status();
  if (!ticket.ok()) return true;
  std::vector<AgentClient::Moved> moved;
  while (moved.empty()) moved = client->Poll(), std::this_thread::yield();
  *end = moved[0].status;
  if (!end->ok()) return true;
  if (scatter) return pages->Right();
  block = pages->Block(ids);
  return std::memcmp(client->slot(0).data(), block.data(), block.size()) == 0;
}

// Attaches and moves until it is killed.
void EngineLife(const std::string& path, MemoryKind kind, uint64_t seed, int test) {
  FakeDriver driver(FakeOptions(kind));
  AgentPages pages(&driver, kind, seed);
  auto client = AgentClient::Connect(path).value();
  const auto generation = client->Attach(driver.table(), pages.device->info().uuid, pages.view,
                                         kAgentLayout, kPatience);
  SayTo(test, generation.ok() ? "attached" : generation.status().ToString());
  for (uint64_t i = seed;; ++i) {
    absl::Status end;
    const bool right = Turn(client.get(), &pages, *generation, i % 2 == 0, &end);
    SayTo(test, right && end.ok() ? "turn" : "wrong");
  }
}

class AgentKillTest : public ::testing::TestWithParam<MemoryKind> {};

TEST_P(AgentKillTest, KilledEnginesLeaveNothingWithTheAgent) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", seed);
  std::mt19937_64 random(seed);
  const std::string path = SocketPath();
  Child agent([&](int test) { AgentLife(path, GetParam(), test); });
  ASSERT_EQ(agent.Hear(), "up");
  const std::string before = agent.Ask("what");
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    const uint64_t its_seed = random();
    Child engine([&](int test) { EngineLife(path, GetParam(), its_seed, test); });
    ASSERT_EQ(engine.Hear(), "attached");
    for (uint64_t n = random() % 4; n > 0; --n) ASSERT_EQ(engine.Hear(), "turn");
    engine.Kill();
    for (std::string word = engine.Hear(); !word.empty(); word = engine.Hear())
      ASSERT_EQ(word, "turn");
    ASSERT_EQ(agent.Ask("what"), before) << "cycle " << cycle;
  }
}

TEST_P(AgentKillTest, KilledAgentsLeaveNothingWithTheEngine) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", seed);
  const std::string path = SocketPath();
  // Connects when it is told, moves until the agent is gone, and says what it has then.
  Child engine([&](int test) {
    FakeDriver driver(FakeOptions(GetParam()));
    AgentPages pages(&driver, GetParam(), seed);
    char word[16];
    while (::recv(test, word, sizeof word, 0) > 0) {
      bool right = true;
      {
        auto client = AgentClient::Connect(path).value();
        const uint64_t generation = client
                                        ->Attach(driver.table(), pages.device->info().uuid,
                                                 pages.view, kAgentLayout, kPatience)
                                        .value();
        absl::Status end;
        for (int i = 0; end.ok(); ++i) {
          right = Turn(client.get(), &pages, generation, i % 2 == 0, &end) && right;
          if (i == 0) SayTo(test, "turn");
        }
        right = right && absl::IsUnavailable(end) && !client->connected() &&
                client->under_way() == 0 &&
                absl::IsUnavailable(client->Detach(generation, kPatience));
        // What the killed one had half scattered is no page of anybody's: written anew.
        pages.Restore();
      }
      SayTo(test, (right ? "right; " : "wrong; ") + Holdings::Now().Text() + "; " + driver.leaks());
    }
  });
  std::mt19937_64 random(seed);
  std::string before;
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    Child agent([&](int test) { AgentLife(path, GetParam(), test); });
    ASSERT_EQ(agent.Hear(), "up");
    ASSERT_EQ(engine.Ask("go"), "turn");
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    agent.Kill();
    const std::string after = engine.Hear();
    if (cycle == 0) before = after;
    ASSERT_EQ(after, before) << "cycle " << cycle;
  }
  EXPECT_EQ(before.substr(0, 6), "right;");
}

INSTANTIATE_TEST_SUITE_P(Kinds, AgentKillTest,
                         ::testing::Values(MemoryKind::kVmm, MemoryKind::kLegacy),
                         [](const auto& info) { return std::string(MemoryKindName(info.param)); });

TEST(AgentHangTest, AHungAgentIsKilledAtTheMovesDeadlineAndTheEngineGoesOn) {
  const std::string path = SocketPath();
  Child agent([&](int test) { AgentLife(path, MemoryKind::kVmm, test); });
  ASSERT_EQ(agent.Hear(), "up");
  Child engine([&](int test) {
    FakeDriver driver({});
    AgentPages pages(&driver, MemoryKind::kVmm, 1);
    auto client = AgentClient::Connect(path).value();
    const uint64_t generation =
        client
            ->Attach(driver.table(), pages.device->info().uuid, pages.view, kAgentLayout, kPatience)
            .value();
    SayTo(test, "attached");
    char word[16];
    ::recv(test, word, sizeof word, 0);  // the agent hangs now
    const std::vector<int64_t> ids = pages.RandomIds();
    const auto ticket = client->Start(generation, MoveDirection::kScatter, 0, ids, 50'000'000);
    std::vector<AgentClient::Moved> moved;
    uint64_t looked = 0;
    for (; ticket.ok() && moved.empty(); ++looked) moved = client->Poll();
    const bool right = looked > 1 && moved.size() == 1 && moved[0].ticket == *ticket &&
                       absl::IsUnavailable(moved[0].status) && pages.Right() &&
                       !client->Start(generation, MoveDirection::kGather, 0, ids, kPatience).ok();
    SayTo(test, right ? "went on" : "wrong");
  });
  ASSERT_EQ(engine.Hear(), "attached");
  agent.Stop();
  ASSERT_EQ(engine.Ask("hangs"), "went on");
  const int status = agent.Wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

// An engine's child has its socket, too: no hang-up comes, and its pidfd says that it is gone.
TEST(AgentHangTest, ADeadEnginesRegistrationsGoThoughItsChildKeepsTheSocket) {
  const std::string path = SocketPath();
  Child agent([&](int test) { AgentLife(path, MemoryKind::kVmm, test); });
  ASSERT_EQ(agent.Hear(), "up");
  const std::string before = agent.Ask("what");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Child engine([&](int test) {
    FakeDriver driver({});
    AgentPages pages(&driver, MemoryKind::kVmm, 1);
    auto client = AgentClient::Connect(path).value();
    const auto generation = client->Attach(driver.table(), pages.device->info().uuid, pages.view,
                                           kAgentLayout, kPatience);
    if (::fork() == 0) {
      ::close(ends[1]);
      char byte;
      [[maybe_unused]] const ssize_t n = ::read(ends[0], &byte, 1);  // until the test lets go
      ::_exit(0);
    }
    SayTo(test, generation.ok() ? "attached" : "not");
    for (;;) ::pause();
  });
  ::close(ends[0]);
  ASSERT_EQ(engine.Hear(), "attached");
  engine.Kill();
  EXPECT_EQ(agent.Ask("what"), before);
  ::close(ends[1]);
}

}  // namespace
}  // namespace kvarve
