// kvarve's benches: one table of rows, whatever the suite. A row is a measured value and, where it
// means something, the same thing done by a bare loop of this binary in the same minute: only the
// ratio of the two is worth comparing between machines.
//
// A suite is a function that fills the table; it registers itself (KVARVE_BENCH_SUITE) and is run
// by name:
//   kvarve_bench [SUITE...] [--filter TEXT] [--json FILE] [--gate]
//
// THREADS: one.  BLOCKS: for as long as the rounds take.
#ifndef KVARVE_TESTS_PERF_BENCH_TABLE_H_
#define KVARVE_TESTS_PERF_BENCH_TABLE_H_

#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace kvarve::perf {

inline constexpr int kRounds = 7;  // medians of these; odd
// A row is called noisy when the middle half of its rounds spreads over more than this part of its
// median: another run may well say something else.
inline constexpr double kNoisy = 0.1;

enum class Better { kLower, kHigher };

// One finished row. `ratio` is the median of the rounds' ratios, so not exactly value / baseline.
struct Row {
  std::string name;  // "suite/what/how"
  double value = 0;  // median of the rounds
  std::string unit;
  std::optional<double> baseline;    // median of the bare loop's rounds
  std::optional<double> ratio;       // value to baseline
  std::string gate;                  // "ratio <= 1.6", "value <= 1000"; empty: only shown
  std::optional<bool> pass;          // of the gate
  std::optional<double> noise = {};  // spread of the rounds' middle half, in parts of the median
  std::string failure;               // why there is no value; then pass is false
};

// What is measured: `mine` against `bare`, one round after the other, in turns. Each call measures
// one round and returns its value in `unit`.
struct Comparison {
  std::string name;
  std::string unit;
  Better better = Better::kLower;
  std::optional<double> gate;  // on the ratio: at most it (kLower), at least it (kHigher)
  std::function<double()> mine;
  std::function<double()> bare;
  int rounds = kRounds;
  std::optional<double> value_gate = {};  // instead of `gate`: on the value, in `unit`
};

// A value of its own, without a baseline.
struct Measurement {
  std::string name;
  std::string unit;
  Better better = Better::kLower;
  std::optional<double> gate;  // on the value
  std::function<double()> measure;
  int rounds = kRounds;
};

class BenchTable {
 public:
  // Rows whose names do not contain `filter` are not measured. Progress goes to `progress`; null:
  // none.
  explicit BenchTable(std::string filter = "", std::FILE* progress = nullptr);

  // Whether the row of this name is measured at all: lets a suite leave out its set-up.
  bool Wants(const std::string& name) const;

  void Compare(const Comparison& comparison);
  void Measure(const Measurement& measurement);
  // A finished row, when the rounds have their own order (peers: three in turns).
  void Add(Row row);
  // A gate on the median of the rounds' ratios / on a median. For Add.
  static void Gate(Row* row, const std::vector<double>& ratios, Better better, double gate);
  // A row that could not be measured; it fails every --gate.
  void Fail(std::string name, std::string why);

  const std::vector<Row>& rows() const { return rows_; }
  bool AllPass() const;

  std::string Text() const;  // for people
  std::string Json()
      const;  // [{"name", "value", "unit", "baseline", "ratio", "gate", "pass", "noise"}, ...]

 private:
  void Progress(const Row& row) const;

  const std::string filter_;
  std::FILE* const progress_;
  std::vector<Row> rows_;
};

double Median(std::vector<double> values);
// q in [0, 1]; nearest rank.
double Quantile(std::vector<double> values, double q);

// ---- Suites.
struct Suite {
  std::string name;
  std::string what;  // one line for --help
  void (*run)(BenchTable* table) = nullptr;
};
// In order of registration; sorted by name when run.
std::vector<Suite>& Suites();

struct SuiteRegistration {
  SuiteRegistration(const char* name, const char* what, void (*run)(BenchTable*)) {
    Suites().push_back({name, what, run});
  }
};
#define KVARVE_BENCH_SUITE(name, what, run) \
  static const ::kvarve::perf::SuiteRegistration kSuiteRegistration_##name(#name, what, run)

// ---- Processors.
std::vector<int> AllowedCpus();

// Keeps the calling thread on one processor until destroyed. Children and threads made meanwhile
// inherit it.
class PinnedTo {
 public:
  explicit PinnedTo(int cpu);
  ~PinnedTo();
  PinnedTo(const PinnedTo&) = delete;
  PinnedTo& operator=(const PinnedTo&) = delete;

 private:
  std::vector<int> before_;
};
// Moves all threads of a process there. NotFound: no such process.
absl::Status PinProcess(int pid, int cpu);

double NowMicros();  // monotonic

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_BENCH_TABLE_H_
