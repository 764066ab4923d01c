// Suite "codec": blocks into their form on a device and back, a core, beside memcpy of as many
// bytes. Blocks: made up here, with exponents as even as real KV's; and real ones, of files that
// tests/perf/kv_blocks.py makes, named in KVARVE_BENCH_KV with colons between them.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/codec/codec.h"
#include "storage/segment/format.h"
#include "storage/testing/seeded_random.h"
#include "tests/perf/bench_table.h"

namespace kvarve::perf {
namespace {

using Bytes = std::vector<std::byte>;

struct BlockSet {
  std::string name;
  BlockLayout layout;
  std::vector<Bytes> blocks;
};

constexpr double kGiga = 1e9;
constexpr uint64_t kBytesARound = 64ull << 20;

// One exponent of three a channel, and signs and mantissas that are noise.
BlockSet MadeUp() {
  BlockSet set{"made_up_1MiB", {16, 2, 64, 128, 128, 2}, {}};
  testing::SeededRandom random(1);
  for (int n = 0; n < 8; ++n) {
    Bytes& block = set.blocks.emplace_back(set.layout.BlockBytes());
    for (size_t i = 0; i < block.size(); i += 2) {
      const uint64_t noise = random.Next();
      block[i] = static_cast<std::byte>(noise);
      const uint64_t exponent = 0x3c + i / 2 % 128 % 3 + ((noise & 0x700) == 0 ? 1 : 0);
      block[i + 1] = static_cast<std::byte>(exponent | (noise >> 16 & 0x80));
    }
  }
  return set;
}

// Six u32 (layers, heads, tokens, k_dim, v_dim, bytes of an element), then whole blocks.
BlockSet FromFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  BlockSet set{std::filesystem::path(path).stem().string(), {}, {}};
  KV_CHECK(text.size() > sizeof(set.layout));
  std::memcpy(&set.layout, text.data(), sizeof(set.layout));
  const uint64_t bytes = set.layout.CappedBlockBytes();
  KV_CHECK(bytes > 0 && bytes <= kMaxBlockBytes);
  for (size_t at = sizeof(set.layout); at + bytes <= text.size(); at += bytes) {
    const auto* begin = reinterpret_cast<const std::byte*>(text.data()) + at;
    set.blocks.emplace_back(begin, begin + bytes);
  }
  KV_CHECK(!set.blocks.empty());
  return set;
}

// GB a second of `each`, called with the number of a block.
template <typename Fn>
double Rate(const BlockSet& set, Fn each) {
  const uint64_t bytes = set.layout.BlockBytes();
  const size_t calls = std::max<size_t>(kBytesARound / bytes, 1);
  const double start = NowMicros();
  for (size_t n = 0; n < calls; ++n) each(n % set.blocks.size());
  return static_cast<double>(calls * bytes) / ((NowMicros() - start) * 1e-6) / kGiga;
}

void RowsOf(BenchTable* table, const BlockSet& set) {
  constexpr Representation kForm = Representation::kPlanes;
  const std::string tail = "/planes/" + set.name;
  const uint64_t bytes = set.layout.BlockBytes();
  std::vector<Bytes> stored;
  double pages = 0;
  for (const Bytes& block : set.blocks) {
    Bytes& out = stored.emplace_back(RoundUp(bytes, kUnit));
    const auto took = Encode(kForm, set.layout, block, out);
    out.resize(took.value_or(0));
    pages += static_cast<double>(RoundUp(out.empty() ? bytes : out.size(), kUnit));
  }
  Bytes out(RoundUp(bytes, kUnit));
  const auto copy = [&] {
    return Rate(set, [&](size_t n) { std::memcpy(out.data(), set.blocks[n].data(), bytes); });
  };
  table->Measure(
      {.name = "codec/ratio_in_pages" + tail,
       .unit = "to 1",
       .better = Better::kHigher,
       .gate = {},
       .measure =
           [&] { return static_cast<double>(set.blocks.size() * RoundUp(bytes, kUnit)) / pages; },
       .rounds = 1});
  table->Compare({.name = "codec/encode" + tail,
                  .unit = "GB/s",
                  .better = Better::kHigher,
                  .gate = {},
                  .mine =
                      [&] {
                        return Rate(set, [&](size_t n) {
                          KV_CHECK(Encode(kForm, set.layout, set.blocks[n], out).has_value());
                        });
                      },
                  .bare = copy});
  table->Compare(
      {.name = "codec/decode" + tail,
       .unit = "GB/s",
       .better = Better::kHigher,
       .gate = {},
       .mine =
           [&] {
             return Rate(set, [&](size_t n) {
               KV_CHECK(Decode(kForm, set.layout, stored[n], std::span(out).first(bytes)).ok());
             });
           },
       .bare = copy});
}

void RunCodec(BenchTable* table) {
  RowsOf(table, MadeUp());
  const char* const files = std::getenv("KVARVE_BENCH_KV");
  if (files == nullptr) return;
  for (const std::string& path : std::vector<std::string>(absl::StrSplit(files, ':'))) {
    RowsOf(table, FromFile(path));
  }
}

KVARVE_BENCH_SUITE(codec, "blocks into their form on a device and back, beside memcpy", RunCodec);

}  // namespace
}  // namespace kvarve::perf
