// Suite "local": the same-host plane, a real daemon and libkvarve, against bare loops of the same
// work: a seqpacket ping of the same message sizes, the single-fetch copy with checksum, the
// non-temporal copy.
//
// "same_core": client, daemon and bare loops share one processor, so that a round trip is the work
// of both and two context switches. "cross_core": client and daemon on two, where waking the other
// costs more than the work (an interrupt, in a virtual machine); shown without a gate.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/local/messages.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/block/checksum.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/seeded_random.h"
#include "tests/perf/bare_ping.h"
#include "tests/perf/bench_client.h"
#include "tests/perf/bench_daemon.h"
#include "tests/perf/bench_table.h"
#include "tests/perf/least_grant.h"

namespace kvarve::perf {
namespace {

// Where client and daemon run. The first processor takes most interrupts of a small machine: not
// that one.
struct Placement {
  const char* name;
  int client_cpu;
  int daemon_cpu;
};

std::vector<Placement> Placements() {
  const std::vector<int> cpus = AllowedCpus();
  std::vector<Placement> placements = {{"same_core", cpus.back(), cpus.back()}};
  if (cpus.size() > 1) placements.push_back({"cross_core", cpus.back(), cpus[cpus.size() - 2]});
  return placements;
}
bool IsSameCore(const Placement& placement) { return placement.client_cpu == placement.daemon_cpu; }

// Memory of the kind that the arena is: shared, small pages unless the host has huge ones for it.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) : bytes_(bytes) {
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    KV_CHECK(base != MAP_FAILED);
    ::madvise(base, bytes, MADV_HUGEPAGE);
    base_ = static_cast<std::byte*>(base);
  }
  ~SharedMemory() { ::munmap(base_, bytes_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Makes the pages of the next `bytes` present; nothing when all are.
  void Touch(size_t bytes) {
    bytes = std::min(bytes, bytes_ - touched_);
    std::memset(base_ + touched_, 0x5a, bytes);
    touched_ += bytes;
  }
  // The next `bytes`, from the start again when the end is reached.
  std::byte* Next(size_t bytes) {
    if (at_ + bytes > bytes_) at_ = 0;
    std::byte* next = base_ + at_;
    at_ += bytes;
    return next;
  }

 private:
  const size_t bytes_;
  std::byte* base_;
  size_t touched_ = 0;
  size_t at_ = 0;
};

double GigabytesPerSecond(double bytes, double micros) { return bytes / micros / 1e3; }

// A daemon with its client, placed.
struct Plane {
  std::unique_ptr<BenchDaemon> daemon;
  std::unique_ptr<BenchClient> client;

  void Place(const Placement& placement) const {
    KV_CHECK(PinProcess(daemon->pid(), placement.daemon_cpu).ok());
  }
};

// Adds a failed row of this name when there is no plane.
std::optional<Plane> MakePlane(BenchTable* table, const char* name,
                               absl::StatusOr<std::unique_ptr<BenchDaemon>> daemon) {
  if (!daemon.ok()) {
    table->Fail(name, absl::StrFormat("daemon: %s", daemon.status().ToString()));
    return std::nullopt;
  }
  auto client = BenchClient::Connect(**daemon);
  if (!client.ok()) {
    table->Fail(name, absl::StrFormat("client: %s", client.status().ToString()));
    return std::nullopt;
  }
  return Plane{*std::move(daemon), *std::move(client)};
}

// ---- Grants and lookups: an index of many small blocks.

constexpr uint64_t kSmallBlock = 4096;
constexpr size_t kChainBlocks = 4096;  // and blocks in a message of the filling
constexpr size_t kGrantBlocks = 64;
constexpr int kGrantsARound = 400;
constexpr size_t kLookupKeys = 8192;
constexpr int kLookupsARound = 15;

// Block `n` of the index lies in chain n / kChainBlocks.
BlockKey SmallKey(uint64_t n) {
  return testing::KeyChain(n / kChainBlocks, 1, n % kChainBlocks)[0];
}

void FillIndex(BenchClient* client, ClientNamespace ns, uint64_t entries) {
  for (uint64_t first = 0; first < entries; first += kChainBlocks) {
    const size_t count = std::min<uint64_t>(kChainBlocks, entries - first);
    client->Fill(ns, testing::KeyChain(first / kChainBlocks, count), count);
  }
}

// The median of acquiring `keys()`; releasing is not timed, and done before the next round trip.
template <typename Keys>
double GrantMicros(Plane* plane, ClientNamespace ns, Keys keys) {
  std::vector<double> micros;
  Client* client = plane->client->client();
  for (int i = 0; i < kGrantsARound; ++i) {
    const std::vector<BlockKey>& wanted = keys();
    const double start = NowMicros();
    const absl::StatusOr<GrantSet> grants = client->AcquireGrants(ns, wanted, /*request_id=*/0);
    micros.push_back(NowMicros() - start);
    KV_CHECK(grants.ok() && grants->items.size() == wanted.size());
    client->Release(grants->lease);
    plane->client->Settle(ns);
  }
  return Median(std::move(micros));
}

double PingMicros(BarePing* ping) {
  std::vector<double> micros;
  for (int i = 0; i < kGrantsARound; ++i) micros.push_back(ping->RoundTripMicros());
  return Median(std::move(micros));
}

template <typename Keys>
double LeastMicros(BarePing* least, Keys keys) {
  std::vector<double> micros;
  for (int i = 0; i < kGrantsARound; ++i) micros.push_back(LeastGrantMicros(least, keys()));
  return Median(std::move(micros));
}

void GrantRows(BenchTable* table, Plane* plane, BarePing* least, ClientNamespace ns,
               uint64_t entries, const Placement& placement) {
  const PinnedTo pinned(placement.client_cpu);
  plane->Place(placement);
  BarePing ping(GrantRequestBytes(kGrantBlocks), GrantReplyBytes(kGrantBlocks));
  KV_CHECK(PinProcess(ping.pid(), placement.daemon_cpu).ok());
  KV_CHECK(PinProcess(least->pid(), placement.daemon_cpu).ok());

  testing::SeededRandom random(1);
  std::vector<BlockKey> scattered(kGrantBlocks);
  const auto random_keys = [&]() -> const std::vector<BlockKey>& {
    for (BlockKey& key : scattered) key = SmallKey(random.Below(entries));
    return scattered;
  };
  const std::vector<BlockKey> run = testing::KeyChain(7, kGrantBlocks);
  const auto hot_run = [&]() -> const std::vector<BlockKey>& { return run; };
  const bool gated = IsSameCore(placement);

  Comparison row{.name = absl::StrFormat("local/grant_64/random_of_1M/%s", placement.name),
                 .unit = "us",
                 .better = Better::kLower};
  row.bare = [&] { return PingMicros(&ping); };
  row.mine = [&] { return GrantMicros(plane, ns, random_keys); };
  if (gated) row.gate = 1.6;
  table->Compare(row);

  row.name = absl::StrFormat("local/grant_64/hot_run/%s", placement.name);
  row.mine = [&] { return GrantMicros(plane, ns, hot_run); };
  if (gated) row.gate = 1.2;
  table->Compare(row);

  // Of which so much is the system calls and the index.
  row.gate.reset();
  row.name = absl::StrFormat("local/least_grant_64/random_of_1M/%s", placement.name);
  row.mine = [&] { return LeastMicros(least, random_keys); };
  table->Compare(row);
  row.name = absl::StrFormat("local/least_grant_64/hot_run/%s", placement.name);
  row.mine = [&] { return LeastMicros(least, hot_run); };
  table->Compare(row);
}

void LookupRow(BenchTable* table, Plane* plane, ClientNamespace ns, uint64_t entries,
               const Placement& placement, const char* label) {
  const PinnedTo pinned(placement.client_cpu);
  plane->Place(placement);
  testing::SeededRandom random(2);
  Measurement row{.name = absl::StrFormat("local/lookup_8192/%s/%s", label, placement.name),
                  .unit = "us",
                  .better = Better::kLower};
  row.measure = [&] {
    std::vector<double> micros;
    std::vector<BlockKey> keys(kLookupKeys);
    for (int i = 0; i < kLookupsARound; ++i) {
      for (BlockKey& key : keys) key = SmallKey(random.Below(entries));
      const double start = NowMicros();
      const absl::StatusOr<LookupResult> found = plane->client->client()->Lookup(ns, keys);
      micros.push_back(NowMicros() - start);
      KV_CHECK(found.ok() && found->hit_blocks == keys.size());
    }
    return Median(std::move(micros));
  };
  row.gate = 1000;
  table->Measure(row);
}

bool WantsAny(BenchTable* table, const std::string& prefix, const std::vector<std::string>& whats) {
  for (const std::string& what : whats) {
    for (const Placement& placement : Placements()) {
      if (table->Wants(prefix + what + "/" + placement.name)) return true;
    }
  }
  return false;
}

void SmallBlockRows(BenchTable* table) {
  if (WantsAny(table, "local/",
               {"grant_64/random_of_1M", "grant_64/hot_run", "least_grant_64/random_of_1M",
                "least_grant_64/hot_run", "lookup_8192/1M"})) {
    constexpr uint64_t kEntries = 1'000'000;
    auto plane = MakePlane(table, "local/grant_64",
                           BenchDaemon::StartKvarved(RoundUp(kEntries * kSmallBlock, 512 * kMiB)));
    if (!plane) return;
    const ClientNamespace ns = plane->client->Open(kSmallBlock);
    FillIndex(plane->client.get(), ns, kEntries);
    const std::unique_ptr<BarePing> least = MakeLeastGrant(kEntries, kGrantBlocks, SmallKey);
    for (const Placement& placement : Placements()) {
      GrantRows(table, &*plane, least.get(), ns, kEntries, placement);
      LookupRow(table, &*plane, ns, kEntries, placement, "1M");
    }
  }
  if (WantsAny(table, "local/", {"lookup_8192/8M"})) {
    constexpr uint64_t kEntries = 8'000'000;
    auto plane = MakePlane(table, "local/lookup_8192/8M",
                           BenchDaemon::StartSparse(RoundUp(kEntries * kSmallBlock, 512 * kMiB)));
    if (!plane) return;
    const ClientNamespace ns = plane->client->Open(kSmallBlock);
    FillIndex(plane->client.get(), ns, kEntries);
    for (const Placement& placement : Placements()) {
      LookupRow(table, &*plane, ns, kEntries, placement, "8M");
    }
  }
}

// ---- Puts and copies.

constexpr uint64_t kCapacity = 2 * kGiB;
constexpr size_t kSpan =
    kGiB;  // what a round goes through, so that nothing is in a processor's cache
constexpr size_t kRoundBytes = 512 * kMiB;

struct Shape {
  size_t blocks;  // a call
  uint64_t block_bytes;
  double put_gate;
  std::optional<double> get_gate;
  size_t call_bytes() const { return blocks * block_bytes; }
  std::string Text() const { return absl::StrFormat("%dx%dKiB", blocks, block_bytes / kKiB); }
};

const Shape kShapes[] = {
    {32, 2 * kMiB, 0.9, 0.9}, {8, kMiB, 0.9, 0.9}, {32, 256 * kKiB, 0.9, 0.9},
    {1, 2 * kMiB, 0.75, {}},  {1, kMiB, 0.75, {}}, {1, 256 * kKiB, 0.65, {}},
};

// Keys of call number `n` of a namespace.
std::vector<BlockKey> CallKeys(uint64_t n, const Shape& shape) {
  return testing::KeyChain(n, shape.blocks);
}

// Puts what lies in the staging, call after call, into an arena whose pages are present and free.
double PutRound(Plane* plane, ClientNamespace ns, const Shape& shape) {
  BenchClient* client = plane->client.get();
  std::vector<double> speeds;
  std::vector<Staging> pieces;
  for (uint64_t call = 0; call < kRoundBytes / shape.call_bytes(); ++call) {
    if (pieces.empty()) pieces = client->StageAll(shape.call_bytes());
    Staging piece = std::move(pieces.back());
    pieces.pop_back();
    const std::vector<BlockKey> keys = CallKeys(call, shape);
    const double start = NowMicros();
    client->PutStaged(ns, keys, std::move(piece));
    speeds.push_back(GigabytesPerSecond(shape.call_bytes(), NowMicros() - start));
  }
  client->Invalidate(ns);
  return Median(std::move(speeds));
}

// Out of the same staging.
double BareCopyRound(Plane* plane, const Shape& shape, SharedMemory* to) {
  std::vector<double> speeds;
  const std::vector<Staging> pieces = plane->client->StageAll(shape.call_bytes());
  for (size_t call = 0; call < kRoundBytes / shape.call_bytes(); ++call) {
    const std::byte* source = pieces[pieces.size() - 1 - call % pieces.size()].data();
    const double start = NowMicros();
    for (size_t block = 0; block < shape.blocks; ++block) {
      CopyAndChecksum(to->Next(shape.block_bytes), source + block * shape.block_bytes,
                      shape.block_bytes, 1);
    }
    speeds.push_back(GigabytesPerSecond(shape.call_bytes(), NowMicros() - start));
  }
  return Median(std::move(speeds));
}

double GetRound(Plane* plane, ClientNamespace ns, const Shape& shape, SharedMemory* to,
                bool verify) {
  std::vector<double> speeds;
  std::vector<std::byte*> destinations(shape.blocks);
  for (uint64_t call = 0; call < kRoundBytes / shape.call_bytes(); ++call) {
    const std::vector<BlockKey> keys = CallKeys(call, shape);
    for (std::byte*& destination : destinations) destination = to->Next(shape.block_bytes);
    const double start = NowMicros();
    const absl::StatusOr<size_t> got =
        plane->client->client()->Get(ns, keys, destinations, /*request_id=*/0, verify);
    speeds.push_back(GigabytesPerSecond(shape.call_bytes(), NowMicros() - start));
    KV_CHECK(got.ok() && *got == keys.size());
  }
  return Median(std::move(speeds));
}

// Out of the same blocks, which the client leases and sees in place.
double BareStreamRound(Plane* plane, ClientNamespace ns, const Shape& shape, SharedMemory* to) {
  std::vector<double> speeds;
  for (uint64_t call = 0; call < kRoundBytes / shape.call_bytes(); ++call) {
    const absl::StatusOr<View> view =
        plane->client->client()->Acquire(ns, CallKeys(call, shape), /*request_id=*/0);
    KV_CHECK(view.ok() && view->size() == shape.blocks);
    const double start = NowMicros();
    for (size_t block = 0; block < shape.blocks; ++block) {
      StreamCopy(to->Next(shape.block_bytes), view->block(block), shape.block_bytes);
    }
    speeds.push_back(GigabytesPerSecond(shape.call_bytes(), NowMicros() - start));
  }
  return Median(std::move(speeds));
}

// The bare loops' memory. How fast a copy is depends on which physical pages the kernel gave (by a
// quarter on the development machine, without huge pages). So the bare put has three arenas, whose
// pages were taken before, in turns with and after those of the daemon's, and uses them round by
// round; it shares the client's staging. The bare get reads the daemon's own arena.
struct BareMemory {
  SharedMemory arenas[3]{SharedMemory(kRoundBytes), SharedMemory(kRoundBytes),
                         SharedMemory(kRoundBytes)};
  SharedMemory buffers{BenchClient::kStagingBytes};
  size_t round = 0;

  SharedMemory* NextArena() { return &arenas[round++ % std::size(arenas)]; }
};

// Makes the pages of the arena present: fills it and empties it again.
void WarmArena(Plane* plane, BareMemory* bare) {
  const Shape shape{8, kMiB, 0, {}};
  bare->arenas[0].Touch(kRoundBytes);
  const ClientNamespace ns = plane->client->Open(shape.block_bytes, "warm");
  for (uint64_t call = 0; call < kCapacity / shape.call_bytes(); ++call) {
    plane->client->Fill(ns, CallKeys(call, shape), shape.blocks);
    bare->arenas[1].Touch(shape.call_bytes());
  }
  bare->arenas[2].Touch(kRoundBytes);
  bare->buffers.Touch(BenchClient::kStagingBytes);
  plane->client->Invalidate(ns);
}

void CopyRows(BenchTable* table, Plane* plane, BareMemory* bare, const Shape& shape,
              const Placement& placement) {
  const PinnedTo pinned(placement.client_cpu);
  plane->Place(placement);
  const bool gated = IsSameCore(placement);
  const ClientNamespace ns = plane->client->Open(shape.block_bytes);

  Comparison put{.name = absl::StrFormat("local/put/%s/%s", shape.Text(), placement.name),
                 .unit = "GB/s",
                 .better = Better::kHigher};
  put.mine = [&] { return PutRound(plane, ns, shape); };
  put.bare = [&] { return BareCopyRound(plane, shape, bare->NextArena()); };
  if (gated) put.gate = shape.put_gate;
  table->Compare(put);
  if (shape.blocks == 1) {
    // What a daemon that does nothing but copy could reach: a bare round trip and the copy.
    BarePing ping(sizeof(local::Header) + sizeof(local::KeysBody) + 32 + 8,
                  sizeof(local::Header) + sizeof(local::PutReplyBody) + 1);
    KV_CHECK(PinProcess(ping.pid(), placement.daemon_cpu).ok());
    put.name = absl::StrFormat("local/put_to_ping_and_copy/%s/%s", shape.Text(), placement.name);
    put.bare = [&] {
      const double bytes = static_cast<double>(shape.call_bytes());
      const double copy_micros = bytes / 1e3 / BareCopyRound(plane, shape, bare->NextArena());
      return GigabytesPerSecond(bytes, copy_micros + PingMicros(&ping));
    };
    put.gate.reset();
    table->Compare(put);
  }

  for (uint64_t call = 0; call < kRoundBytes / shape.call_bytes(); ++call) {
    plane->client->Fill(ns, CallKeys(call, shape), shape.blocks);
  }
  for (const bool verify : {false, true}) {
    Comparison get{.name = absl::StrFormat("local/get%s/%s/%s", verify ? "_verified" : "",
                                           shape.Text(), placement.name),
                   .unit = "GB/s",
                   .better = Better::kHigher};
    get.mine = [&] { return GetRound(plane, ns, shape, &bare->buffers, verify); };
    get.bare = [&] { return BareStreamRound(plane, ns, shape, &bare->buffers); };
    if (gated && !verify) get.gate = shape.get_gate;
    table->Compare(get);
  }
  plane->client->Invalidate(ns);
}

void BigBlockRows(BenchTable* table) {
  std::vector<std::string> whats;
  for (const Shape& shape : kShapes) {
    for (const char* what : {"put/", "put_to_ping_and_copy/", "get/", "get_verified/"}) {
      whats.push_back(what + shape.Text());
    }
  }
  if (!WantsAny(table, "local/", whats)) return;
  auto plane =
      MakePlane(table, "local/put", BenchDaemon::StartKvarved(kCapacity, /*prefault=*/false));
  if (!plane) return;
  BareMemory bare;
  WarmArena(&*plane, &bare);
  for (const Placement& placement : Placements()) {
    for (const Shape& shape : kShapes) CopyRows(table, &*plane, &bare, shape, placement);
  }
}

void RunLocalSuite(BenchTable* table) {
  BigBlockRows(table);
  SmallBlockRows(table);
}

KVARVE_BENCH_SUITE(local, "the same-host plane: grants, lookups, puts, copy-out", RunLocalSuite);

}  // namespace
}  // namespace kvarve::perf
