// The published traces that policies are held to. THREADS: any.  BLOCKS: reads files.
#ifndef KVARVE_STORAGE_POLICY_PUBLISHED_TRACES_TESTING_H_
#define KVARVE_STORAGE_POLICY_PUBLISHED_TRACES_TESTING_H_

#include <array>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "storage/base/status_macros.h"
#include "storage/policy/trace.h"

namespace kvarve::testing {

inline constexpr const char* kTraceFiles[] = {"mooncake_conversation", "mooncake_synthetic", "gmi"};
// Capacities, of the unique blocks.
inline constexpr std::array<double, 7> kShares = {0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4};

// REQUIRES: the repository's root as working directory.
inline Trace LoadTrace(const std::string& name) {
  const std::ifstream file("storage/policy/testdata/" + name + ".csv");
  std::stringstream text;
  text << file.rdbuf();
  auto trace = ParseTrace(text.str());
  KV_CHECK(trace.ok() && trace->references > 0);
  return *std::move(trace);
}

}  // namespace kvarve::testing

#endif  // KVARVE_STORAGE_POLICY_PUBLISHED_TRACES_TESTING_H_
