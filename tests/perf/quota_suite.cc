// Suite "quota": how soon a tenant has its floor of host memory back when another has borrowed all
// of it. The borrower is a client of this host that still maps every chunk, the owner one of
// another host; against the same puts into a daemon that nobody borrowed from.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/rpc/grpc_plane.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/free_port.h"
#include "tests/perf/bench_client.h"
#include "tests/perf/bench_daemon.h"
#include "tests/perf/bench_secrets.h"
#include "tests/perf/bench_table.h"

namespace kvarve::perf {
namespace {

constexpr uint64_t kCapacity = 512 * kMiB, kFloor = 256 * kMiB, kBlock = kMiB;
constexpr double kSecondsGate = 1;
constexpr auto kPause = std::chrono::milliseconds(2);
constexpr int kTriesMax = 10'000;

// Puts until all of them are stored: what has no room yet is tried again.
void StoreAll(Client* client, ClientNamespace ns, std::span<const BlockKey> keys) {
  const std::vector<std::byte> block(kBlock, std::byte{0x5a});
  const std::vector<const std::byte*> sources(16, block.data());
  PutChain chain;
  int tries = 0;
  while (!keys.empty()) {
    chain.keys = keys.first(std::min(keys.size(), sources.size()));
    const auto outcomes = client->Put(ns, chain, std::span(sources).first(chain.keys.size()));
    size_t stored = 0;
    while (outcomes.ok() && stored < outcomes->size() &&
           (*outcomes)[stored] == PutOutcome::kStored) {
      ++stored;
    }
    if (stored > 0) {
      chain.parent = keys[stored - 1];
      chain.first_depth += static_cast<uint32_t>(stored);
      keys = keys.subspan(stored);
      continue;
    }
    KV_CHECK(++tries < kTriesMax);
    std::this_thread::sleep_for(kPause);
  }
}

void RunQuotaSuite(BenchTable* table) {
  const std::string name = "quota/give_back/256MiB";
  if (!table->Wants(name)) return;
  client::UseGrpc();
  const auto secrets = BenchSecrets::Make();
  if (!secrets.ok()) return table->Fail(name, secrets.status().ToString());
  const std::string token = (*secrets)->File("token");
  const std::string address = absl::StrFormat("127.0.0.1:%d", FreePort());
  const auto daemon = BenchDaemon::StartKvarved(
      kCapacity, /*prefault=*/true,
      {absl::StrFormat("--rpc.listen=%s", address), absl::StrFormat("--rpc.token_file=%s", token),
       "--tenant.default=owner", absl::StrFormat("--tenant.rules=uid:%d=borrower", ::getuid()),
       absl::StrFormat("--tenant.quotas=owner=host_bytes:%dMiB..", kFloor / kMiB)});
  if (!daemon.ok()) return table->Fail(name, daemon.status().ToString());
  const auto borrower = BenchClient::Connect(**daemon);
  const auto owner = BenchClient::Connect(absl::StrFormat("kvarve://%s", address), token);
  if (!borrower.ok()) return table->Fail(name, borrower.status().ToString());
  if (!owner.ok()) return table->Fail(name, owner.status().ToString());
  const ClientNamespace lent = (*borrower)->Open(kBlock), owned = (*owner)->Open(kBlock);
  const std::vector<BlockKey> all = testing::KeyChain(1, kCapacity / kBlock);
  const std::vector<BlockKey> floor = testing::KeyChain(2, kFloor / kBlock);
  std::vector<std::byte> memory(kBlock);
  const std::vector<std::byte*> to(all.size(), memory.data());
  const auto take = [&] {
    const double start = NowMicros();
    StoreAll((*owner)->client(), owned, floor);
    return (NowMicros() - start) / 1e6;
  };
  Comparison comparison{name, "s"};
  comparison.mine = [&] {
    (*owner)->Invalidate(owned);
    (*borrower)->Invalidate(lent);  // what it kept of the last round, too
    StoreAll((*borrower)->client(), lent, all);
    const absl::StatusOr<size_t> mapped = (*borrower)->client()->Get(lent, all, to);
    KV_CHECK(mapped.ok() && *mapped == all.size());
    return take();
  };
  comparison.bare = [&] {
    (*owner)->Invalidate(owned);
    (*borrower)->Invalidate(lent);
    return take();
  };
  comparison.value_gate = kSecondsGate;
  table->Compare(comparison);
}

KVARVE_BENCH_SUITE(quota, "a tenant's floor taken back from who borrowed it", RunQuotaSuite);

}  // namespace
}  // namespace kvarve::perf
