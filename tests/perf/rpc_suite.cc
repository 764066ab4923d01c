// Suite "rpc": runs of blocks over gRPC, a real daemon and libkvarve, against a bare gRPC stream of
// raw slices of the same sizes between two processes, in turns; then both in mutual TLS. Both sides
// of both copy each byte once and compute its CRC-64. Rows: GB/s of one client, and the server's
// processor time for a GB.
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/rpc/grpc_plane.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/free_port.h"
#include "tests/perf/bare_stream.h"
#include "tests/perf/bench_client.h"
#include "tests/perf/bench_daemon.h"
#include "tests/perf/bench_secrets.h"
#include "tests/perf/bench_table.h"

namespace kvarve::perf {
namespace {

constexpr uint64_t kCapacity = 512 * kMiB;
// Many short turns: a virtual machine's speed changes within seconds, and both sides of a ratio
// shall see the same.
constexpr uint64_t kRoundBytes = BenchClient::kStagingBytes;  // one put
constexpr int kTurns = 31;
constexpr uint64_t kSizes[] = {64 * kKiB, 256 * kKiB, kMiB, 4 * kMiB};
constexpr double kSpeedGate = 0.9;
constexpr double kReadCpuGate = 0.28;  // core-seconds a GB, of the server

std::string SizeText(uint64_t bytes) {
  return bytes < kMiB ? absl::StrFormat("%dK", bytes / kKiB) : absl::StrFormat("%dM", bytes / kMiB);
}

// A transfer of a round: its speed, and what it cost the server.
struct Cost {
  double gigabytes_per_second = 0;
  double core_seconds_per_gigabyte = 0;
};
template <typename Transfer>
Cost Measure(int server_pid, uint64_t bytes, Transfer transfer) {
  const double cpu = ProcessCpuSeconds(server_pid), start = NowMicros();
  transfer();
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  return {gigabytes * 1e6 / (NowMicros() - start),
          (ProcessCpuSeconds(server_pid) - cpu) / gigabytes};
}

struct Remote {
  std::unique_ptr<BenchDaemon> daemon;
  std::unique_ptr<BenchClient> client;
  std::unique_ptr<BareStream> bare;
  std::vector<std::byte> memory = std::vector<std::byte>(64 * kMiB);  // of the client; present
};

absl::StatusOr<Remote> MakeRemote(bool tls) {
  client::UseGrpc();
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<BenchSecrets> secrets, BenchSecrets::Make());
  const std::string address = absl::StrFormat("127.0.0.1:%d", FreePort());
  std::vector<std::string> flags = {"--rpc.listen=" + address};
  if (tls) {
    flags.push_back("--rpc.tls_certificate_file=" + secrets->File("server.pem"));
    flags.push_back("--rpc.tls_key_file=" + secrets->File("server.key"));
    flags.push_back("--rpc.tls_client_ca_file=" + secrets->File("ca.pem"));
  } else {
    flags.push_back("--rpc.token_file=" + secrets->File("token"));
  }
  Remote remote;
  KV_ASSIGN_OR_RETURN(remote.daemon,
                      BenchDaemon::StartKvarved(kCapacity, /*prefault=*/true, flags));
  const ClientTls files = {secrets->File("ca.pem"), secrets->File("client.pem"),
                           secrets->File("client.key"), ""};
  KV_ASSIGN_OR_RETURN(remote.client,
                      tls ? BenchClient::Connect("kvarves://" + address, "", files)
                          : BenchClient::Connect("kvarve://" + address, secrets->File("token")));
  KV_ASSIGN_OR_RETURN(remote.bare, BareStream::Start(tls ? secrets->folder() : ""));
  return remote;
}

// A round's chain; other blocks for each round of writes.
std::vector<BlockKey> RoundKeys(uint64_t block_bytes, uint64_t round) {
  return testing::KeyChain(block_bytes / kKiB * 100 + round, kRoundBytes / block_bytes);
}

void GetRound(Remote* remote, ClientNamespace ns, std::span<const BlockKey> keys,
              uint64_t block_bytes) {
  std::vector<std::byte*> to(keys.size());
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = &remote->memory[i * block_bytes % remote->memory.size()];
  }
  const absl::StatusOr<size_t> got = remote->client->client()->Get(ns, keys, to);
  KV_CHECK(got.ok() && *got == keys.size());
}

void AddRows(BenchTable* table, const std::string& what, const std::vector<Cost>& mine,
             const std::vector<Cost>& bare, std::optional<double> cpu_gate) {
  std::vector<double> my_speed, bare_speed, ratios, my_cpu, bare_cpu;
  for (size_t i = 0; i < mine.size(); ++i) {
    my_speed.push_back(mine[i].gigabytes_per_second);
    bare_speed.push_back(bare[i].gigabytes_per_second);
    ratios.push_back(my_speed.back() / bare_speed.back());
    my_cpu.push_back(mine[i].core_seconds_per_gigabyte);
    bare_cpu.push_back(bare[i].core_seconds_per_gigabyte);
  }
  Row speed{"rpc/" + what, Median(my_speed), "GB/s", Median(bare_speed), Median(ratios)};
  BenchTable::Gate(&speed, ratios, Better::kHigher, kSpeedGate);
  table->Add(std::move(speed));
  Row cpu{"rpc/server_cpu/" + what, Median(my_cpu), "s/GB", Median(bare_cpu)};
  cpu.ratio = cpu.value / *cpu.baseline;
  if (cpu_gate) {
    cpu.gate = absl::StrFormat("value <= %g", *cpu_gate);
    cpu.pass = cpu.value <= *cpu_gate;
  }
  table->Add(std::move(cpu));
}

void RunSize(BenchTable* table, Remote* remote, uint64_t block_bytes, bool tls) {
  const std::string prefix = tls ? "tls/" : "";
  const uint64_t count = kRoundBytes / block_bytes;
  const ClientNamespace ns = remote->client->Open(block_bytes, "rpc");
  std::vector<Cost> mine, bare;
  for (int round = 0; round < kTurns; ++round) {
    const auto my_turn = [&] {
      const std::vector<BlockKey> keys = RoundKeys(block_bytes, static_cast<uint64_t>(round));
      mine.push_back(Measure(remote->daemon->pid(), kRoundBytes,
                             [&] { remote->client->Fill(ns, keys, count); }));
      if (round + 1 < kTurns) remote->client->Invalidate(ns);
    };
    if (round % 2 == 0) my_turn();
    bare.push_back(Measure(remote->bare->pid(), kRoundBytes,
                           [&] { remote->bare->Write(block_bytes, count, remote->memory); }));
    if (round % 2 != 0) my_turn();
  }
  AddRows(table, prefix + "write/" + SizeText(block_bytes), mine, bare, std::nullopt);

  // What the last round stored.
  const std::vector<BlockKey> keys = RoundKeys(block_bytes, kTurns - 1);
  mine.clear();
  bare.clear();
  for (int round = 0; round < kTurns; ++round) {
    const auto my_turn = [&] {
      mine.push_back(Measure(remote->daemon->pid(), kRoundBytes,
                             [&] { GetRound(remote, ns, keys, block_bytes); }));
    };
    if (round % 2 == 0) my_turn();
    bare.push_back(Measure(remote->bare->pid(), kRoundBytes,
                           [&] { remote->bare->Read(block_bytes, count, remote->memory); }));
    if (round % 2 != 0) my_turn();
  }
  AddRows(table, prefix + "read/" + SizeText(block_bytes), mine, bare,
          tls ? std::nullopt : std::optional(kReadCpuGate));  // encryption has its price
  remote->client->Invalidate(ns);
}

void RunTransport(BenchTable* table, bool tls) {
  const std::string prefix = tls ? "tls/" : "";
  std::vector<uint64_t> sizes;
  for (const uint64_t size : kSizes) {
    for (const char* what : {"write/", "read/"}) {
      const std::string name = prefix + what + SizeText(size);
      if (!table->Wants("rpc/" + name) && !table->Wants("rpc/server_cpu/" + name)) continue;
      sizes.push_back(size);
      break;
    }
  }
  if (sizes.empty()) return;
  // A processor for each side, or the scheduler decides how fast both are.
  const std::vector<int> cpus = AllowedCpus();
  const PinnedTo client(cpus.front());
  absl::StatusOr<Remote> remote = MakeRemote(tls);
  if (!remote.ok()) return table->Fail("rpc", remote.status().ToString());
  for (const int pid : {remote->daemon->pid(), remote->bare->pid()}) {
    if (const absl::Status pinned = PinProcess(pid, cpus.back()); !pinned.ok()) {
      return table->Fail("rpc", pinned.ToString());
    }
  }
  for (const uint64_t size : sizes) RunSize(table, &*remote, size, tls);
}

// What others reached over TCP with one client, at their best, on the development machine of 29
// November 2026 (docs/benchmarks.md): to be seen beside the rows above, not compared with them.
void AddPeers(BenchTable* table) {
  struct Peer {
    const char* name;
    double put_256k, get_256k, put_1m, get_1m;  // GB/s
  };
  static constexpr Peer kPeers[] = {{"bare_c_loop", 2.15, 2.83, 3.74, 3.62},
                                    {"redis_7.0.15", 1.44, 1.95, 2.96, 2.81},
                                    {"kvblockd_e671185", 0.66, 1.59, 1.32, 2.60},
                                    {"mooncake_0.3.13", 0.65, 0.82, 1.26, 1.04}};
  for (const Peer& peer : kPeers) {
    for (const auto& [what, value] :
         {std::pair("write/256K", peer.put_256k), std::pair("read/256K", peer.get_256k),
          std::pair("write/1M", peer.put_1m), std::pair("read/1M", peer.get_1m)}) {
      Row row;
      row.name = absl::StrFormat("rpc/peers_then/%s/%s", peer.name, what);
      row.value = value;
      row.unit = "GB/s";
      if (table->Wants(row.name)) table->Add(std::move(row));
    }
  }
}

void RunRpcSuite(BenchTable* table) {
  RunTransport(table, /*tls=*/false);
  RunTransport(table, /*tls=*/true);
  AddPeers(table);
}

KVARVE_BENCH_SUITE(rpc, "blocks over gRPC: runs read and written, and the server's CPU",
                   RunRpcSuite);

}  // namespace
}  // namespace kvarve::perf
