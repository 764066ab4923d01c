// The device benchmark's frame: steps one after the other, each in a process of its own with a
// deadline of its own, and whatever they say on one line of JSON each, written through at once. A
// step that hangs is killed and one that dies is buried; the rest goes on, and the lines say so.
//
// Lines: {"step": NAME, ...} as a step reports; {"step": NAME, "status": "ok", "failed", "deadline"
// or "skipped" (no time was left), "seconds": S, "rows": N, "error": TEXT} at its end.
//
// THREADS: one, and no other when steps run: they are forked.  BLOCKS: for all steps.
#ifndef KVARVE_GPU_BENCH_BENCH_STEPS_H_
#define KVARVE_GPU_BENCH_BENCH_STEPS_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace kvarve::gpu_bench {

using Json = nlohmann::ordered_json;
// What a step reports by: a JSON object; its "step" is put in.
using Report = std::function<void(const Json&)>;

struct Step {
  std::string name;
  double deadline_seconds = 0;
  std::function<absl::Status(const Report&)> run;  // in a process of its own
};

// Writes lines to the descriptor `out`. `total_seconds` bounds all of them together. How many steps
// were not ok.
int RunSteps(const std::vector<Step>& steps, double total_seconds, int out);

}  // namespace kvarve::gpu_bench

#endif  // KVARVE_GPU_BENCH_BENCH_STEPS_H_
