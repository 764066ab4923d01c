// What a fuzz target gives beside LLVMFuzzerTestOneInput: the inputs to start from. With
// KVARVE_FUZZ the target links libFuzzer; without, replay.cc runs it as a plain test: every seed,
// what libFuzzer found and was kept (corpus/), and thousands of seeded mutations of both.
// THREADS: one.
#ifndef KVARVE_TESTS_FUZZ_FUZZ_H_
#define KVARVE_TESTS_FUZZ_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace kvarve::fuzz {

std::vector<std::string> Seeds();

}  // namespace kvarve::fuzz

#endif  // KVARVE_TESTS_FUZZ_FUZZ_H_
