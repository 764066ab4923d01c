// Runs a fuzz target without libFuzzer: its seeds, mutations of them, and the files named on the
// command line. usage: x_fuzz [--seed=N] [--rounds=N] [FILE...]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>

#include "tests/fuzz/fuzz.h"

namespace {

constexpr size_t kMaxInputBytes = 512 * 1024;
constexpr int kMaxEdits = 8;

// In an allocation of exactly its size, so that a sanitizer sees the first byte past it.
void RunOne(const std::string& input) {
  const std::unique_ptr<uint8_t[]> exact(new uint8_t[input.size()]);
  std::memcpy(exact.get(), input.data(), input.size());
  LLVMFuzzerTestOneInput(exact.get(), input.size());
}

void Edit(std::string* input, const std::vector<std::string>& seeds, std::mt19937_64* random) {
  static constexpr uint32_t kInteresting[] = {
      0,    1,    15,   16,   17,   31,    32,         33,         255,        4095,
      4096, 4097, 8191, 8192, 8193, 65535, 0x7fffffff, 0x80000000, 0xfffffff0, 0xffffffff};
  const size_t at = input->empty() ? 0 : (*random)() % input->size();
  switch ((*random)() % 6) {
    case 0:
      if (!input->empty()) (*input)[at] ^= static_cast<char>(1 << ((*random)() % 8));
      break;
    case 1:
      if (!input->empty()) (*input)[at] = static_cast<char>((*random)());
      break;
    case 2:
      input->resize(at);
      break;
    case 3:
      input->insert(at, std::string((*random)() % 64, static_cast<char>((*random)())));
      break;
    case 4: {
      const uint32_t value = kInteresting[(*random)() % std::size(kInteresting)];
      if (input->size() >= 4)
        std::memcpy(input->data() + std::min(at, input->size() - 4), &value, 4);
      break;
    }
    default: {
      const std::string& other = seeds[(*random)() % seeds.size()];
      *input = input->substr(0, at) + other.substr(other.empty() ? 0 : (*random)() % other.size());
    }
  }
  if (input->size() > kMaxInputBytes) input->resize(kMaxInputBytes);
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seed = std::random_device()();
  int rounds = 2000;
  std::vector<std::string> seeds = kvarve::fuzz::Seeds();
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--seed=", 7) == 0) {
      seed = std::strtoull(argv[i] + 7, nullptr, 10);
    } else if (std::strncmp(argv[i], "--rounds=", 9) == 0) {
      rounds = std::atoi(argv[i] + 9);
    } else {
      std::ifstream file(argv[i], std::ios::binary);
      seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  std::printf("--seed=%llu --rounds=%d\n", static_cast<unsigned long long>(seed), rounds);
  std::fflush(stdout);
  std::mt19937_64 random(seed);
  for (const std::string& input : seeds) RunOne(input);
  for (int round = 0; round < rounds; ++round) {
    for (const std::string& original : seeds) {
      std::string input = original;
      const int edits = 1 + static_cast<int>(random() % kMaxEdits);
      for (int i = 0; i < edits; ++i) Edit(&input, seeds, &random);
      RunOne(input);
    }
  }
  return 0;
}
