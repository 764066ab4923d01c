// For libFuzzer: writes the target's seeds into the folder KVARVE_WRITE_SEEDS, which is a corpus
// that it reads afterwards (`./dev fuzz`).
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "storage/base/status_macros.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* const folder = std::getenv("KVARVE_WRITE_SEEDS");
  if (folder == nullptr) return 0;
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const std::string& seed : kvarve::fuzz::Seeds()) {
    const auto path = std::filesystem::path(folder) / ("seed-" + std::to_string(number++));
    std::ofstream file(path, std::ios::binary);
    KV_CHECK(!(file << seed << std::flush).fail());
  }
  return 0;
}
