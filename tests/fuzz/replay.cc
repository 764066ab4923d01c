// Runs a fuzz target without libFuzzer: its seeds, the files of its corpus, and mutations of both.
// usage: x_fuzz [--seed=N] [--rounds=N] [FILE | FOLDER...]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>

#include "storage/base/status_macros.h"
#include "tests/fuzz/fuzz.h"

namespace {

namespace fs = std::filesystem;

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

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  KV_CHECK(file.is_open());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A folder without a file is a corpus that was lost.
std::vector<fs::path> FilesOf(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    files.push_back(entry.path());
  }
  KV_CHECK(!files.empty());
  std::ranges::sort(files);
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seed = std::random_device()();
  int rounds = 2000;
  std::vector<std::string> inputs = kvarve::fuzz::Seeds();
  const size_t seeds = inputs.size();
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--seed=", 7) == 0) {
      seed = std::strtoull(argv[i] + 7, nullptr, 10);
    } else if (std::strncmp(argv[i], "--rounds=", 9) == 0) {
      rounds = std::atoi(argv[i] + 9);
    } else {
      for (const fs::path& path : FilesOf(argv[i])) {
        std::printf("%s\n", path.c_str());  // the last one that is named is the one that failed
        std::fflush(stdout);
        inputs.push_back(ReadFile(path));
        RunOne(inputs.back());
      }
    }
  }
  std::printf("--seed=%llu --rounds=%d\n", static_cast<unsigned long long>(seed), rounds);
  std::fflush(stdout);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < seeds; ++i) RunOne(inputs[i]);
  for (size_t round = 0; round < rounds * seeds; ++round) {
    std::string input = inputs[random() % inputs.size()];
    const int edits = 1 + static_cast<int>(random() % kMaxEdits);
    for (int i = 0; i < edits; ++i) Edit(&input, inputs, &random);
    RunOne(input);
  }
  return 0;
}
