#include "storage/testing/seeded_random.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

namespace kvarve::testing {

SeededRandom::SeededRandom(uint64_t seed) : seed_(seed) {
  if (const char* text = std::getenv("KVARVE_TEST_SEED"); text != nullptr) {
    seed_ = std::strtoull(text, nullptr, 0);
  }
  state_ = seed_;
  std::printf("seed: KVARVE_TEST_SEED=%" PRIu64 "\n", seed_);
}

// splitmix64.
uint64_t SeededRandom::Next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace kvarve::testing
