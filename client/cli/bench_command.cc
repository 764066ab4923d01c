// bench: a quick look at a running daemon. Its numbers are of this machine at this moment; the ones
// that are compared with bare loops are kvarve_bench's.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>

#include "absl/strings/str_format.h"
#include "client/cli/block_input.h"
#include "client/cli/context.h"
#include "client/cli/output.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::cli {
namespace {

constexpr uint32_t kMaxRounds = 1000;
constexpr uint64_t kMaxRoundBytes = 1ull << 30;
constexpr uint64_t kStagingBytes = 64ull << 20;

struct BenchFlags {
  std::string block_bytes = "1MiB";
  uint32_t blocks = 32;
  uint32_t rounds = 5;
  bool full = false;
  std::vector<std::string> arguments;
};

using Clock = std::chrono::steady_clock;

// Seconds of each round, by operation, in order of first use.
class Times {
 public:
  template <typename Fn>
  auto Measure(const std::string& name, Fn fn) {
    const Clock::time_point start = Clock::now();
    auto result = fn();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (!seconds_.contains(name)) names_.push_back(name);
    seconds_[name].push_back(seconds);
    return result;
  }
  const std::vector<std::string>& names() const { return names_; }
  double Median(const std::string& name) const {
    std::vector<double> sorted = seconds_.at(name);
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::vector<double>> seconds_;
};

struct Bench {
  Client* client;
  ClientNamespace ns;
  uint64_t block_bytes;
  std::vector<std::byte> data, out;
  std::mt19937_64 random{std::random_device()()};
  Times times;

  absl::Status Round(size_t blocks) {
    std::vector<BlockKey> keys(blocks);
    std::vector<const std::byte*> sources(blocks);
    std::vector<std::byte*> destinations(blocks);
    for (size_t i = 0; i < blocks; ++i) {
      for (uint8_t& byte : keys[i].bytes) byte = static_cast<uint8_t>(random());
      sources[i] = data.data() + i * block_bytes;
      destinations[i] = out.data() + i * block_bytes;
    }
    PutChain chain;
    chain.keys = keys;
    const auto put = times.Measure("put", [&] { return client->Put(ns, chain, sources); });
    KV_RETURN_IF_ERROR(put.status());
    for (const PutOutcome outcome : *put) {
      if (outcome != PutOutcome::kStored) {
        return absl::ResourceExhaustedError(
            "the daemon did not store all blocks; try fewer or smaller ones");
      }
    }
    const auto hits = times.Measure("lookup", [&] { return client->Lookup(ns, keys); });
    KV_RETURN_IF_ERROR(hits.status());
    {
      const auto view =
          times.Measure("acquire in place", [&] { return client->Acquire(ns, keys); });
      KV_RETURN_IF_ERROR(view.status());
    }
    const auto got =
        times.Measure("get, verified", [&] { return client->Get(ns, keys, destinations); });
    KV_RETURN_IF_ERROR(got.status());
    if (*got != blocks || std::memcmp(data.data(), out.data(), blocks * block_bytes) != 0) {
      return absl::DataLossError(
          "what was read is not what was put; were blocks evicted meanwhile?");
    }
    return client->Invalidate(ns).status();
  }
};

int PrintBench(const Context& context, const Bench& bench, const BenchFlags& flags) {
  const uint64_t bytes = flags.blocks * bench.block_bytes;
  Json rows = Json::array();
  Table table({"operation", "blocks", "median", "rate"});
  for (const std::string& name : bench.times.names()) {
    const double seconds = bench.times.Median(name);
    const bool moves = name == "put" || name == "get, verified";
    const double rate = moves ? static_cast<double>(bytes) / seconds : 0;
    rows.push_back({{"name", name},
                    {"blocks", flags.blocks},
                    {"median_us", seconds * 1e6},
                    {"bytes_per_second", rate}});
    table.Add({name, std::to_string(flags.blocks), absl::StrFormat("%.1f us", seconds * 1e6),
               moves ? FormatBytes(static_cast<uint64_t>(rate)) + "/s" : "-"});
  }
  if (context.json) {
    PrintJson(
        {{"block_bytes", bench.block_bytes}, {"rounds", flags.rounds}, {"rows", std::move(rows)}});
  } else {
    Print(table.Text());
  }
  return kExitGood;
}

int Quick(const Context& context, const BenchFlags& flags) {
  BlockFlags blocks;
  blocks.model = "kvarve-bench";
  blocks.salt =
      "bench";  // a namespace of its own, the same in each run: a daemon keeps those that it opened
  blocks.block_bytes = flags.block_bytes;
  const absl::StatusOr<NamespaceDescriptor> descriptor = DescriptorOf(blocks);
  if (!descriptor.ok()) return ReportUsage(context, std::string(descriptor.status().message()));
  const uint64_t bytes = flags.blocks * descriptor->block_bytes;
  if (flags.blocks == 0 || flags.rounds == 0 || flags.rounds > kMaxRounds ||
      bytes > kMaxRoundBytes) {
    return ReportUsage(context, "a round has 1 block to 1 GiB, and there are 1 to 1000 rounds");
  }
  const auto client = Connect(context, kStagingBytes);
  if (!client.ok()) return Report(context, client.status());
  const auto ns = (*client)->OpenNamespace(*descriptor);
  if (!ns.ok()) return Report(context, ns.status());
  Bench bench{client->get(), *ns, descriptor->block_bytes, std::vector<std::byte>(bytes),
              std::vector<std::byte>(bytes)};
  for (std::byte& byte : bench.data) byte = static_cast<std::byte>(bench.random());
  for (uint32_t round = 0; round < flags.rounds; ++round) {
    const absl::Status done = bench.Round(flags.blocks);
    if (!done.ok()) return Report(context, done);
  }
  return PrintBench(context, bench, flags);
}

// kvarve_bench lies beside this binary, or in the build's folder of benches.
int Full(const Context& context, const BenchFlags& flags) {
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : {"kvarve_bench", "../bench/kvarve_bench"}) {
    const std::string path = (folder / place).string();
    if (::access(path.c_str(), X_OK) != 0) continue;
    std::vector<char*> argv = {const_cast<char*>(path.c_str())};
    for (const std::string& argument : flags.arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(path.c_str(), argv.data());
    return Report(context, absl::InternalError(path + ": " + std::strerror(errno)));
  }
  return Report(context,
                absl::NotFoundError(
                    "kvarve_bench does not lie beside this binary; it is built from the tree"));
}

}  // namespace

void AddBenchCommand(CLI::App* app, Context* context) {
  CLI::App* const bench =
      app->add_subcommand("bench", "Quick speed of a running daemon, or the full benches");
  const auto flags = std::make_shared<BenchFlags>();
  bench->add_option("--block-bytes", flags->block_bytes, "Bytes a block")->capture_default_str();
  bench->add_option("--blocks", flags->blocks, "Blocks a round; they may push others out")
      ->capture_default_str();
  bench->add_option("--rounds", flags->rounds, "Rounds; the median is printed")
      ->capture_default_str();
  bench->add_flag("--full", flags->full, "Run kvarve_bench instead; further arguments are its own");
  bench->add_option("arguments", flags->arguments,
                    "With --full: suites and flags of kvarve_bench, after --");
  bench->callback([=] {
    context->command = [=] {
      return flags->full ? Full(*context, *flags) : Quick(*context, *flags);
    };
  });
}

}  // namespace kvarve::cli
