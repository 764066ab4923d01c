// Random numbers of a test: the same in every run, unless KVARVE_TEST_SEED says otherwise. The seed
// is printed, so that a failure under another seed can be repeated. THREADS: one owner.
#ifndef KVARVE_STORAGE_TESTING_SEEDED_RANDOM_H_
#define KVARVE_STORAGE_TESTING_SEEDED_RANDOM_H_

#include <cstdint>

namespace kvarve::testing {

class SeededRandom {
 public:
  // Takes KVARVE_TEST_SEED if it is set, else `seed`; prints what it took.
  explicit SeededRandom(uint64_t seed);

  uint64_t seed() const { return seed_; }
  uint64_t Next();
  // Uniform in [0, bound). REQUIRES: bound > 0.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(Next()) * bound >> 64);
  }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  uint64_t seed_;
  uint64_t state_;
};

}  // namespace kvarve::testing

#endif  // KVARVE_STORAGE_TESTING_SEEDED_RANDOM_H_
