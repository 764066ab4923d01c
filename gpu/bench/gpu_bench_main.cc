// The device benchmark (`./dev bench-gpu`): docs/gpu.md says what it does and what came of it.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "gpu/bench/gpu_steps.h"
#include "gpu/kernels/kernel_module.h"
#include "storage/base/unique_fd.h"

int main(int argc, char** argv) {
  using namespace kvarve::gpu_bench;  // NOLINT(google-build-using-namespace): this is its program
  CLI::App app("kvarve on one GPU: a line of JSON for each thing seen; at most four minutes");
  Plan plan;
  std::string out;
  std::vector<std::string> wanted;
  const auto last = CLI::MultiOptionPolicy::TakeLast;
  app.add_option("--cases", plan.cases_file, "what kernels must answer: cases.cbor of the pack")
      ->required()
      ->multi_option_policy(last);
  app.add_option("--out", out, "a file for the lines (default: standard output)")
      ->multi_option_policy(last);
  app.add_option("--device", plan.uuid, "UUID, where there are several")->multi_option_policy(last);
  app.add_option("--steps", wanted, "only these steps");
  app.footer("Exit codes: 0 every step was ok; 1 one was not; 2 wrong command line.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Error& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const auto module = kvarve::KernelModule();
  if (!module.ok()) {
    std::fprintf(stderr, "%s\n", module.status().ToString().c_str());
    return 2;
  }
  plan.source.driver = kvarve::cuda::LoadDriver;
  plan.source.module = *module;
  kvarve::UniqueFd file;
  if (!out.empty()) {
    file.reset(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file.valid()) {
      std::perror(out.c_str());
      return 2;
    }
  }
  std::vector<Step> steps = GpuSteps(plan);
  for (const std::string& name : wanted) {
    if (std::ranges::none_of(steps, [&](const Step& step) { return step.name == name; })) {
      std::fprintf(stderr, "no step %s; there are:", name.c_str());
      for (const Step& step : steps) std::fprintf(stderr, " %s", step.name.c_str());
      std::fprintf(stderr, "\n");
      return 2;
    }
  }
  std::erase_if(steps, [&](const Step& step) {
    return !wanted.empty() && std::ranges::find(wanted, step.name) == wanted.end();
  });
  return RunSteps(steps, kTotalSeconds, file.valid() ? file.get() : STDOUT_FILENO) == 0 ? 0 : 1;
}
