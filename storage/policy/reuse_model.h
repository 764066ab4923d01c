// How soon blocks are asked for again, by class, and what it is worth to keep one: learned from
// ages at reuse, from ages at which blocks were forgotten, and from those that still wait
// (Kaplan-Meier: what has not come back *yet* counts as waiting, not as never).
//
// A class is (hits so far, response length, hits of the deepest block that its request found). Each
// level is shrunk towards the one above with the weight of `shrinkage` touches, so that a useless
// feature costs next to nothing and a class without observations behaves as its parent.
//
// Worth(class, age) is the best rate of hits per access of residence that keeping a block of that
// age can give: the largest, over all times T, of P(reused within T) / E[min(time to reuse, T)],
// both given that it waited so long already (a Gittins index).
//
// THREADS: externally synchronised.  BLOCKS: never.  Fitting goes in steps of some microseconds.
#ifndef KVARVE_STORAGE_POLICY_REUSE_MODEL_H_
#define KVARVE_STORAGE_POLICY_REUSE_MODEL_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvarve {

struct ReuseClass {
  static constexpr int kHits = 5;      // 0, 1, 2, 3-6, 7 and more
  static constexpr int kResponse = 5;  // 0-64, -256, -1024, more tokens; unknown
  static constexpr int kChain = 6;     // nothing found, or the hits of the deepest block found
  static constexpr int kCount = kHits * kResponse * kChain;
  static constexpr int OfHits(uint32_t hits) {
    return hits >= 7 ? 4 : hits >= 3 ? 3 : static_cast<int>(hits);
  }
  static int OfResponse(uint32_t tokens);
  static constexpr int Of(uint32_t hits, int response, int chain) {
    return (OfHits(hits) * kResponse + response) * kChain + chain;
  }
};

struct ReuseOptions {
  double shrinkage = 500;  // touches, to the level above
  double root_shrinkage = 50;
  double forgotten = 0.02;  // of what was observed, in 1,000 touches
};

class ReuseModel {
 public:
  static constexpr int kAges = 96;  // log-spaced: 0, 1, 2, 3, then four an octave, up to 2^25
  static int AgeOf(uint64_t accesses) {
    if (accesses < 4) return static_cast<int>(accesses);
    const int octave = 63 - std::countl_zero(accesses);
    const int quarter = static_cast<int>(accesses >> (octave - 2) & 3);
    return std::min(kAges - 1, 4 * (octave - 1) + quarter);
  }
  static double AgeStart(int age);  // in accesses

  static constexpr double kMinReuses = 64;  // below: untrained

  explicit ReuseModel(const ReuseOptions& options = {});

  void Reused(int of_class, int age, uint32_t times = 1) {
    events_[of_class].reused[age] += static_cast<float>(times);
  }
  void Forgotten(int of_class, int age, uint32_t blocks = 1) {
    events_[of_class].left[age] += static_cast<float>(blocks);
  }
  // A census of all that wait: Waits for each, then Fit. A later census begins with none.
  void Waits(int of_class, int age, uint32_t blocks = 1) {
    events_[of_class].waiting[age] += static_cast<float>(blocks);
  }

  // A step of the fit that follows a census; false when it was the last. `touches`: since the fit
  // before, for the forgetting. Worth changes class by class.
  bool FitStep(double touches);
  // Enough was seen for Worth to mean something.
  bool trained() const { return trained_; }
  uint64_t MemoryBytes() const {
    return events_.capacity() * sizeof(Events) + worth_.capacity() * sizeof(Ages);
  }
  double Worth(int of_class, int age) const { return worth_[of_class][age]; }

  std::string Save() const;
  bool Load(std::string_view saved);

 private:
  using Ages = std::array<float, kAges>;
  struct Events {
    Ages reused{}, left{}, waiting{};
  };
  using Hazards = std::array<double, kAges>;
  static constexpr int kMiddle = ReuseClass::kHits * ReuseClass::kResponse;

  void FitLevels();
  void FitClass(int of_class);
  void Forget(double touches);

  ReuseOptions options_;
  std::vector<Events> events_;                  // of each class
  std::vector<Ages> worth_;                     // of each class
  std::array<Hazards, kMiddle> middle_hazard_;  // of (hits, response)
  int next_class_ = -1;                         // of the fit under way; -1: the levels above
  bool trained_ = false;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_REUSE_MODEL_H_
