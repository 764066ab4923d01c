// Suite "peers": kvarve's same-host plane against what people use: redis over its Unix socket,
// without persistence, with a client at its best (redis_client.h). Both store what lies ready in
// the caller's memory, both bring it into memory of the caller's. kvarve's put finds the blocks
// where its callers gather them, in staging; "put_copied" takes them from other memory, with one
// copy more. kvarve's get verifies checksums.
//
// Both run in turns on all processors, in a steady state: redis overwrites its keys, kvarve stores
// new ones and evicts old ones. A row's value is the bytes of a call by the median time of a call.
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/testing/block_generator.h"
#include "tests/perf/bench_client.h"
#include "tests/perf/bench_daemon.h"
#include "tests/perf/bench_table.h"
#include "tests/perf/redis_client.h"

namespace kvarve::perf {
namespace {

constexpr uint64_t kCapacity = 1536 * kMiB;
constexpr size_t kRoundBytes = kGiB;
constexpr double kPercentile = 0.99;
constexpr double kShareOfLowerP99 = 0.8;

struct Shape {
  size_t blocks;  // a call
  uint64_t block_bytes;
  double gate;
  size_t call_bytes() const { return blocks * block_bytes; }
  size_t calls() const { return kRoundBytes / call_bytes(); }
  std::string Text() const { return absl::StrFormat("%dx%dKiB", blocks, block_bytes / kKiB); }
};

const Shape kShapes[] = {{1, 256 * kKiB, 1.5}, {1, kMiB, 2},  {1, 2 * kMiB, 2},
                         {32, 256 * kKiB, 2},  {32, kMiB, 2}, {32, 2 * kMiB, 2}};

// Times of calls, round by round.
struct Times {
  std::vector<double> medians;  // a round's
  std::vector<double> all;
  void AddRound(const std::vector<double>& micros) {
    medians.push_back(Median(micros));
    all.insert(all.end(), micros.begin(), micros.end());
  }
};

// The caller's memory: as much as kvarve's staging, used piece by piece.
class Buffers {
 public:
  Buffers() : memory_(BenchClient::kStagingBytes, std::byte{0x5a}) {}
  std::vector<std::byte*> Next(const Shape& shape) {
    if (at_ + shape.call_bytes() > memory_.size()) at_ = 0;
    std::vector<std::byte*> blocks;
    for (size_t i = 0; i < shape.blocks; ++i) {
      blocks.push_back(memory_.data() + at_ + i * shape.block_bytes);
    }
    at_ += shape.call_bytes();
    return blocks;
  }

 private:
  std::vector<std::byte> memory_;
  size_t at_ = 0;
};

struct Peers {
  std::unique_ptr<BenchDaemon> redis_server, kvarved;
  std::unique_ptr<RedisClient> redis;
  std::unique_ptr<BenchClient> kvarve;
  Buffers buffers;
  uint64_t next_chain = 1;      // kvarve's keys are new ones in every round
  size_t cells = 0, lower = 0;  // p99
};

std::vector<std::vector<BlockKey>> Keys(uint64_t first_chain, const Shape& shape) {
  std::vector<std::vector<BlockKey>> keys;
  for (size_t call = 0; call < shape.calls(); ++call) {
    keys.push_back(testing::KeyChain(first_chain + call, shape.blocks));
  }
  return keys;
}

template <typename Call>
std::vector<double> TimeCalls(const std::vector<std::vector<BlockKey>>& keys, const Shape& shape,
                              Buffers* buffers, Call call) {
  std::vector<double> micros;
  for (const std::vector<BlockKey>& call_keys : keys) {
    const std::vector<std::byte*> blocks = buffers->Next(shape);
    const double start = NowMicros();
    call(call_keys, blocks);
    micros.push_back(NowMicros() - start);
  }
  return micros;
}

void RedisPut(Peers* peers, const Shape& shape, Times* times) {
  times->AddRound(TimeCalls(Keys(1, shape), shape, &peers->buffers, [&](auto& keys, auto& blocks) {
    std::vector<const std::byte*> sources(blocks.begin(), blocks.end());
    KV_CHECK(peers->redis->Put(keys, sources, shape.block_bytes).ok());
  }));
}

void RedisGet(Peers* peers, const Shape& shape, Times* times) {
  times->AddRound(TimeCalls(Keys(1, shape), shape, &peers->buffers, [&](auto& keys, auto& blocks) {
    KV_CHECK(peers->redis->Get(keys, blocks, shape.block_bytes).ok());
  }));
}

uint64_t NextChains(Peers* peers, const Shape& shape) {
  const uint64_t first = peers->next_chain;
  peers->next_chain += shape.calls();
  return first;
}

void KvarvePut(Peers* peers, ClientNamespace ns, const Shape& shape, Times* times) {
  std::vector<double> micros;
  std::vector<Staging> pieces;
  for (const std::vector<BlockKey>& keys : Keys(NextChains(peers, shape), shape)) {
    if (pieces.empty()) pieces = peers->kvarve->StageAll(shape.call_bytes());
    Staging piece = std::move(pieces.back());
    pieces.pop_back();
    const double start = NowMicros();
    peers->kvarve->PutStaged(ns, keys, std::move(piece));
    micros.push_back(NowMicros() - start);
  }
  times->AddRound(micros);
}

void KvarvePutCopied(Peers* peers, ClientNamespace ns, const Shape& shape, Times* times) {
  const auto keys = Keys(NextChains(peers, shape), shape);
  times->AddRound(TimeCalls(keys, shape, &peers->buffers, [&](auto& call_keys, auto& blocks) {
    std::vector<const std::byte*> sources(blocks.begin(), blocks.end());
    PutChain chain;
    chain.keys = call_keys;
    const auto outcomes = peers->kvarve->client()->Put(ns, chain, sources);
    KV_CHECK(outcomes.ok() && outcomes->back() == PutOutcome::kStored);
  }));
}

// The keys of the last put round.
void KvarveGet(Peers* peers, ClientNamespace ns, const Shape& shape, Times* times) {
  const auto keys = Keys(peers->next_chain - shape.calls(), shape);
  times->AddRound(TimeCalls(keys, shape, &peers->buffers, [&](auto& call_keys, auto& blocks) {
    const auto got = peers->kvarve->client()->Get(ns, call_keys, blocks, 0, /*verify=*/true);
    KV_CHECK(got.ok() && *got == call_keys.size());
  }));
}

// The rows of one cell. `gated` cells count for the share of lower p99.
void AddRows(BenchTable* table, Peers* peers, const std::string& cell, const Shape& shape,
             const Times& redis, const Times& kvarve, bool gated) {
  const auto speed = [&](double micros) {
    return static_cast<double>(shape.call_bytes()) / micros / 1e3;
  };
  std::vector<double> ratios, mine, theirs;
  for (size_t round = 0; round < redis.medians.size(); ++round) {
    mine.push_back(speed(kvarve.medians[round]));
    theirs.push_back(speed(redis.medians[round]));
    ratios.push_back(mine.back() / theirs.back());
  }
  Row row{"peers/redis_unix/" + cell, Median(mine), "GB/s", Median(theirs), Median(ratios)};
  if (gated) BenchTable::Gate(&row, ratios, Better::kHigher, shape.gate);
  table->Add(row);

  const double p99 = Quantile(kvarve.all, kPercentile),
               redis_p99 = Quantile(redis.all, kPercentile);
  table->Add({"peers/redis_unix/p99/" + cell, p99, "us", redis_p99, p99 / redis_p99});
  if (gated) {
    ++peers->cells;
    peers->lower += p99 < redis_p99;
  }
}

void Warm(Peers* peers, const Shape& shape, ClientNamespace ns) {
  Times unused;
  RedisPut(peers, shape, &unused);
  KvarvePut(peers, ns, shape, &unused);
  KvarvePut(peers, ns, shape, &unused);  // full from here on
}

void RunShape(BenchTable* table, Peers* peers, const Shape& shape) {
  const ClientNamespace ns = peers->kvarve->Open(shape.block_bytes);
  Warm(peers, shape, ns);
  Times redis_put, kvarve_put, kvarve_put_copied, redis_get, kvarve_get;
  for (int round = 0; round < kRounds; ++round) {
    RedisPut(peers, shape, &redis_put);
    KvarvePutCopied(peers, ns, shape, &kvarve_put_copied);
    KvarvePut(peers, ns, shape, &kvarve_put);
    RedisGet(peers, shape, &redis_get);
    KvarveGet(peers, ns, shape, &kvarve_get);
  }
  AddRows(table, peers, "put/" + shape.Text(), shape, redis_put, kvarve_put, true);
  AddRows(table, peers, "put_copied/" + shape.Text(), shape, redis_put, kvarve_put_copied, false);
  AddRows(table, peers, "get/" + shape.Text(), shape, redis_get, kvarve_get, true);
  KV_CHECK(peers->redis->FlushAll().ok());
  peers->kvarve->Invalidate(ns);
}

absl::Status Start(Peers* peers) {
  KV_ASSIGN_OR_RETURN(peers->redis_server,
                      BenchDaemon::Start({"redis-server", "--port", "0", "--unixsocket", "SOCKET",
                                          "--save", "", "--appendonly", "no", "--daemonize", "no"},
                                         SOCK_STREAM));
  KV_ASSIGN_OR_RETURN(peers->redis, RedisClient::Connect(peers->redis_server->socket_path()));
  // `hazard` would come to refuse blocks that nobody reads again after a round.
  KV_ASSIGN_OR_RETURN(peers->kvarved, BenchDaemon::StartKvarved(kCapacity, /*prefault=*/true,
                                                                {"--cache.policy=lru"}));
  KV_ASSIGN_OR_RETURN(peers->kvarve, BenchClient::Connect(*peers->kvarved));
  return absl::OkStatus();
}

void RunPeersSuite(BenchTable* table) {
  std::vector<Shape> shapes;
  for (const Shape& shape : kShapes) {
    for (const char* what :
         {"put/", "put_copied/", "get/", "p99/put/", "p99/put_copied/", "p99/get/"}) {
      if (!table->Wants(std::string("peers/redis_unix/") + what + shape.Text())) continue;
      shapes.push_back(shape);
      break;
    }
  }
  if (shapes.empty()) return;
  Peers peers;
  if (const absl::Status status = Start(&peers); !status.ok()) {
    table->Fail("peers/redis_unix", status.ToString());
    return;
  }
  for (const Shape& shape : shapes) RunShape(table, &peers, shape);
  Row share{"peers/redis_unix/share_of_lower_p99",
            static_cast<double>(peers.lower) / static_cast<double>(peers.cells), "share"};
  share.gate = absl::StrFormat("value >= %g", kShareOfLowerP99);
  share.pass = share.value >= kShareOfLowerP99;
  table->Add(std::move(share));
}

KVARVE_BENCH_SUITE(peers, "redis over its Unix socket, in the same minutes", RunPeersSuite);

}  // namespace
}  // namespace kvarve::perf
