#include "storage/policy/load_model.h"

#include <algorithm>

namespace kvarve {
namespace {

// Sizes that differ by less than this share of their mean tell nothing of a and b apart.
constexpr double kAlike = 0.05;
constexpr double kMegabyte = 1e6;  // the unit inside, so that sums are of like size

}  // namespace

void LoadModel::Observe(double bytes, double seconds) {
  if (!(bytes > 0) || !(seconds >= 0)) return;
  const double x = bytes / kMegabyte;
  ++seen_;
  weight_ = kKept * weight_ + 1;
  x_ = kKept * x_ + x;
  xx_ = kKept * xx_ + x * x;
  t_ = kKept * t_ + seconds;
  xt_ = kKept * xt_ + x * seconds;
}

std::optional<double> LoadModel::Seconds(double bytes) const {
  if (seen_ < kLeast) return std::nullopt;
  const double x = bytes / kMegabyte;
  const double mean = x_ / weight_;
  const double variance = xx_ / weight_ - mean * mean;
  const double through_zero = t_ / x_ * x;
  if (variance < kAlike * mean * kAlike * mean) return through_zero;
  const double slope = (xt_ / weight_ - mean * t_ / weight_) / variance;
  const double start = t_ / weight_ - slope * mean;
  if (start < 0) return xt_ / xx_ * x;  // no load is faster than none
  if (slope < 0) return t_ / weight_;   // what takes time is not the bytes
  return start + slope * x;
}

}  // namespace kvarve
