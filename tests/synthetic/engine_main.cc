// An engine of two processes and no model: the scheduler looks up and leases, the worker loads,
// computes and saves, as vLLM's two do. Commands come on standard input, one a line:
//   run SEED TOKENS     prefills a prompt; prints one JSON line when its last page is there
//   save                waits until the last prompt's blocks are saved; prints how many, and a CRC
//   of all its pages
// usage: kvarve_synthetic_engine ENDPOINT
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"
#include "storage/block/prefix_hash.h"
#include "tests/synthetic/model.h"
#include "tests/synthetic/worker.h"

namespace kvarve::synthetic {
namespace {

constexpr int64_t kReadyNanos = 5'000'000'000;
constexpr int64_t kHoldNanos = 5'000'000'000;
constexpr int64_t kLoadNanos = 5'000'000'000;

absl::Status Run(Client* client, ClientNamespace ns, int worker, uint64_t seed, uint64_t tokens) {
  const int64_t start = SystemClock::Get()->NowNanos();
  PrefixHasher hasher(kBlockTokens, {});
  hasher.Extend(PromptTokens(seed, tokens));
  const int64_t before_lookup = SystemClock::Get()->NowNanos();
  Job job{.seed = seed, .tokens = tokens};
  GrantSet grants;
  absl::StatusOr<LookupResult> found = client->Lookup(ns, hasher.keys(), kHoldNanos);
  // What lies on a device comes into memory now; an engine would do something else meanwhile.
  while (found.ok() && found->host_blocks < found->hit_blocks &&
         SystemClock::Get()->NowNanos() - before_lookup < kLoadNanos) {
    client->Release(found->hold);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    found = client->Lookup(ns, hasher.keys(), kHoldNanos);
  }
  if (found.ok() && found->hit_blocks > 0) {
    const auto leased =
        client->AcquireGrants(ns, std::span(hasher.keys()).first(found->hit_blocks), seed);
    if (leased.ok()) grants = *leased;
    client->Release(found->hold);
  }
  const int64_t after_lookup = SystemClock::Get()->NowNanos();
  job.incarnation = grants.incarnation;
  job.lease = grants.lease;
  job.block_bytes = grants.block_bytes;
  job.grant_items = grants.items.size();
  std::string packet(reinterpret_cast<const char*>(&job), sizeof(job));
  packet.append(reinterpret_cast<const char*>(grants.items.data()),
                grants.items.size() * sizeof(local::GrantItem));
  Outcome outcome;
  if (send(worker, packet.data(), packet.size(), MSG_NOSIGNAL) < 0 ||
      recv(worker, &outcome, sizeof(outcome), 0) != sizeof(outcome)) {
    return absl::UnavailableError("the worker is gone");
  }
  const int64_t end = SystemClock::Get()->NowNanos();
  if (grants.lease != 0) client->Release(grants.lease);
  const uint64_t loaded = outcome.loaded_blocks * kBlockTokens;
  std::printf(
      "{\"seed\": %" PRIu64 ", \"loaded\": %" PRIu64 ", \"computed\": %" PRIu64
      ", \"ttft_ms\": %.3f, \"lookup_ms\": %.3f, \"load_ms\": %.3f, \"bytes\": %" PRIu64 "}\n",
      seed, loaded, tokens - loaded, (end - start) / 1e6, (after_lookup - before_lookup) / 1e6,
      outcome.load_us / 1e3, outcome.loaded_blocks * grants.block_bytes);
  return absl::OkStatus();
}

absl::Status Loop(const std::string& endpoint, const std::string& engine_id, int worker) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                      Connect(endpoint, engine_id, local::Role::kScheduler));
  KV_ASSIGN_OR_RETURN(const ClientNamespace ns, client->OpenNamespace(Descriptor()));
  KV_RETURN_IF_ERROR(client->WaitReady(kReadyNanos));
  char line[256];
  while (std::fgets(line, sizeof(line), stdin) != nullptr) {
    uint64_t seed = 0, tokens = 0;
    Outcome outcome;
    if (std::sscanf(line, "run %" SCNu64 " %" SCNu64, &seed, &tokens) == 2) {
      KV_RETURN_IF_ERROR(Run(client.get(), ns, worker, seed, tokens));
    } else if (std::strncmp(line, "save", 4) == 0) {
      if (recv(worker, &outcome, sizeof(outcome), 0) != sizeof(outcome)) {
        return absl::UnavailableError("the worker is gone");
      }
      std::printf("{\"saved\": %" PRIu64 ", \"pages\": \"%016" PRIx64 "\"}\n", outcome.saved_blocks,
                  outcome.pages_crc);
    } else {
      return absl::InvalidArgumentError("commands are: run SEED TOKENS, save");
    }
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

int Main(const std::string& endpoint) {
  int sockets[2];
  KV_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
  const std::string engine_id = "synthetic-" + std::to_string(getpid());
  const pid_t child = fork();  // before any thread or connection exists
  KV_CHECK(child >= 0);
  close(sockets[child == 0 ? 0 : 1]);
  const absl::Status status =
      child == 0 ? Serve(endpoint, engine_id, sockets[1]) : Loop(endpoint, engine_id, sockets[0]);
  if (!status.ok()) std::fprintf(stderr, "synthetic engine: %s\n", status.ToString().c_str());
  if (child != 0) {
    close(sockets[0]);
    waitpid(child, nullptr, 0);
  }
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace kvarve::synthetic

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: kvarve_synthetic_engine ENDPOINT\n");
    return 2;
  }
  return kvarve::synthetic::Main(argv[1]);
}
