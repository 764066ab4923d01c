// One row of the table of metrics, and where its samples go. Private to services/metrics.
// THREADS: one at a time.
#ifndef KVARVE_SERVICES_METRICS_METRIC_H_
#define KVARVE_SERVICES_METRICS_METRIC_H_

#include <prometheus/metric_family.h>

#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "services/metrics/exposition.h"

namespace kvarve {

// Collects the samples of one metric.
class Samples {
 public:
  using Labels = std::vector<prometheus::ClientMetric::Label>;

  explicit Samples(prometheus::MetricFamily* family) : family_(family) {}

  void Add(double value, Labels labels = {}) {
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    if (family_->type == prometheus::MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    family_->metric.push_back(std::move(metric));
  }
  void Add(uint64_t value, Labels labels = {}) {
    Add(static_cast<double>(value), std::move(labels));
  }

  void AddLatency(const RequestStats& stats, Labels labels) {
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    uint64_t cumulative = 0;
    for (size_t i = 0; i < stats.buckets.size(); ++i) {
      cumulative += stats.buckets[i];
      const double bound = i < kLatencyBoundsMicros.size()
                               ? static_cast<double>(kLatencyBoundsMicros[i]) / 1e6
                               : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({cumulative, bound});
    }
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = static_cast<double>(stats.total_micros) / 1e6;
    family_->metric.push_back(std::move(metric));
  }

 private:
  prometheus::MetricFamily* const family_;
};

struct Metric {
  const char* name;
  prometheus::MetricType type;
  const char* labels;  // for the documentation; empty: none
  const char* help;
  void (*collect)(const MetricsSnapshot& snapshot, Samples& samples);
};

// Of the NVMe tier.
std::span<const Metric> DeviceMetrics();

}  // namespace kvarve

#endif  // KVARVE_SERVICES_METRICS_METRIC_H_
