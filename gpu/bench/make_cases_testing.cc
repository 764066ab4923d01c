// usage: kvarve_gpu_bench_cases FILE   Records the cases of device_cases.h. Fails when an oracle
// disagrees with what it records.
#include <gtest/gtest.h>

#include <cstdio>

#include "gpu/bench/device_cases_testing.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: kvarve_gpu_bench_cases FILE\n");
    return 2;
  }
  const auto cases = kvarve::gpu_bench::RecordCases(false);
  if (testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) return 1;
  const absl::Status saved = kvarve::gpu_bench::SaveCases(cases, argv[1]);
  if (!saved.ok()) std::fprintf(stderr, "%s\n", saved.ToString().c_str());
  return saved.ok() ? 0 : 1;
}
