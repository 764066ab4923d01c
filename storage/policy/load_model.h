// How long a device takes to bring blocks: seconds = a + b x bytes, by least squares over what was
// seen of late (an observation weighs kKept of the next one). `bytes` are those that are wanted and
// those that were asked for earlier and are not there yet, so that a queue counts.
//
// THREADS: externally synchronised.  BLOCKS: never.
#ifndef KVARVE_STORAGE_POLICY_LOAD_MODEL_H_
#define KVARVE_STORAGE_POLICY_LOAD_MODEL_H_

#include <cstdint>
#include <optional>

namespace kvarve {

class LoadModel {
 public:
  static constexpr double kKept = 0.8;
  static constexpr uint64_t kLeast = 3;  // observations; with fewer nothing is said

  void Observe(double bytes, double seconds);
  std::optional<double> Seconds(double bytes) const;

 private:
  uint64_t seen_ = 0;
  double weight_ = 0, x_ = 0, xx_ = 0, t_ = 0, xt_ = 0;  // sums
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_POLICY_LOAD_MODEL_H_
