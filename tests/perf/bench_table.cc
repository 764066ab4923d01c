#include "tests/perf/bench_table.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace kvarve::perf {
namespace {

// Three or more significant digits, without an exponent.
std::string Number(double value) {
  const double size = std::fabs(value);
  return absl::StrFormat("%.*f", size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3, value);
}

std::string GateText(const char* what, Better better, double gate) {
  return absl::StrFormat("%s %s %g", what, better == Better::kLower ? "<=" : ">=", gate);
}

// Of several rounds.
std::optional<double> Noise(const std::vector<double>& rounds) {
  const double median = Median(rounds);
  if (rounds.size() < 3 || median == 0) return std::nullopt;
  return (Quantile(rounds, 0.75) - Quantile(rounds, 0.25)) / std::fabs(median);
}

bool Holds(double value, Better better, double gate) {
  return better == Better::kLower ? value <= gate : value >= gate;
}

void GateValue(Row* row, Better better, double gate) {
  row->gate = GateText("value", better, gate);
  row->pass = Holds(row->value, better, gate);
}

void SetAffinity(int thread, const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(cpu, &set);
  KV_CHECK(::sched_setaffinity(thread, sizeof(set), &set) == 0);
}

}  // namespace

double Quantile(std::vector<double> values, double q) {
  KV_CHECK(!values.empty() && q >= 0 && q <= 1);
  const double rank = std::ceil(q * static_cast<double>(values.size()));
  const size_t at = rank < 1 ? 0 : static_cast<size_t>(rank) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

BenchTable::BenchTable(std::string filter, std::FILE* progress)
    : filter_(std::move(filter)), progress_(progress) {}

bool BenchTable::Wants(const std::string& name) const {
  return name.find(filter_) != std::string::npos;
}

void BenchTable::Compare(const Comparison& comparison) {
  if (!Wants(comparison.name)) return;
  KV_CHECK(comparison.rounds > 0);
  std::vector<double> mine, bare, ratios;
  for (int round = 0; round < comparison.rounds; ++round) {
    // In turns, and neither always first.
    const bool mine_first = round % 2 == 0;
    if (mine_first) mine.push_back(comparison.mine());
    bare.push_back(comparison.bare());
    if (!mine_first) mine.push_back(comparison.mine());
    ratios.push_back(mine.back() / bare.back());
  }
  Row row{comparison.name, Median(mine), comparison.unit, Median(bare), Median(ratios)};
  row.noise = Noise(ratios);
  if (comparison.gate) Gate(&row, ratios, comparison.better, *comparison.gate);
  if (comparison.value_gate) GateValue(&row, comparison.better, *comparison.value_gate);
  Add(std::move(row));
}

void BenchTable::Measure(const Measurement& measurement) {
  if (!Wants(measurement.name)) return;
  KV_CHECK(measurement.rounds > 0);
  std::vector<double> values;
  values.reserve(static_cast<size_t>(measurement.rounds));
  for (int round = 0; round < measurement.rounds; ++round) values.push_back(measurement.measure());
  Row row{measurement.name, Median(values), measurement.unit};
  row.noise = Noise(values);
  if (measurement.gate) GateValue(&row, measurement.better, *measurement.gate);
  Add(std::move(row));
}

void BenchTable::Gate(Row* row, const std::vector<double>& ratios, Better better, double gate) {
  row->ratio = Median(ratios);
  row->gate = GateText("ratio", better, gate);
  row->pass = Holds(*row->ratio, better, gate);
}

void BenchTable::Add(Row row) {
  if (!Wants(row.name)) return;
  Progress(row);
  rows_.push_back(std::move(row));
}

void BenchTable::Fail(std::string name, std::string why) {
  Row row;
  row.name = std::move(name);
  row.failure = std::move(why);
  row.pass = false;
  Add(std::move(row));
}

bool BenchTable::AllPass() const {
  return std::all_of(rows_.begin(), rows_.end(),
                     [](const Row& row) { return row.pass.value_or(true); });
}

void BenchTable::Progress(const Row& row) const {
  if (progress_ == nullptr) return;
  std::fprintf(
      progress_, "  %s: %s\n", row.name.c_str(),
      row.failure.empty() ? (Number(row.value) + " " + row.unit).c_str() : row.failure.c_str());
}

std::string BenchTable::Text() const {
  size_t width = 4;
  for (const Row& row : rows_) width = std::max(width, row.name.size());
  const int name_width = static_cast<int>(width);
  std::string text = absl::StrFormat("%-*s  %10s  %-6s  %10s  %7s  %-16s  %s\n", name_width, "name",
                                     "value", "unit", "baseline", "ratio", "gate", "pass");
  for (const Row& row : rows_) {
    const std::string noisy =
        row.noise.value_or(0) > kNoisy ? absl::StrFormat("noisy, +-%.0f %%", *row.noise * 50) : "";
    text += absl::StrFormat("%-*s  %10s  %-6s  %10s  %7s  %-16s  %-4s  %s\n", name_width, row.name,
                            row.failure.empty() ? Number(row.value) : "-", row.unit,
                            row.baseline ? Number(*row.baseline) : "-",
                            row.ratio ? Number(*row.ratio) : "-", row.gate,
                            !row.pass   ? ""
                            : *row.pass ? "yes"
                                        : "NO",
                            noisy);
    if (!row.failure.empty()) text += absl::StrFormat("%*s  %s\n", name_width, "", row.failure);
  }
  return text;
}

std::string BenchTable::Json() const {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Row& row : rows_) {
    nlohmann::ordered_json item;
    // All keys are always there, in this order; what is not known is null.
    for (const char* key :
         {"name", "value", "unit", "baseline", "ratio", "gate", "pass", "noise"}) {
      item[key] = nullptr;
    }
    item["name"] = row.name;
    item["unit"] = row.unit;
    if (row.failure.empty()) item["value"] = row.value;
    if (row.baseline) item["baseline"] = *row.baseline;
    if (row.ratio) item["ratio"] = *row.ratio;
    if (!row.gate.empty()) item["gate"] = row.gate;
    if (row.pass) item["pass"] = *row.pass;
    if (row.noise) item["noise"] = *row.noise;
    if (!row.failure.empty()) item["failure"] = row.failure;
    rows.push_back(std::move(item));
  }
  return rows.dump(1) + "\n";
}

std::vector<Suite>& Suites() {
  static auto* const suites = new std::vector<Suite>();
  return *suites;
}

std::vector<int> AllowedCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  KV_CHECK(::sched_getaffinity(0, sizeof(set), &set) == 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

PinnedTo::PinnedTo(int cpu) : before_(AllowedCpus()) { SetAffinity(0, {cpu}); }
PinnedTo::~PinnedTo() { SetAffinity(0, before_); }

absl::Status PinProcess(int pid, int cpu) {
  const std::string path = absl::StrFormat("/proc/%d/task", pid);
  DIR* tasks = ::opendir(path.c_str());
  if (tasks == nullptr) return absl::NotFoundError(path);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  while (const dirent* task = ::readdir(tasks)) {
    const int thread = ::atoi(task->d_name);
    if (thread > 0) ::sched_setaffinity(thread, sizeof(set), &set);  // one may have ended meanwhile
  }
  ::closedir(tasks);
  return absl::OkStatus();
}

double NowMicros() { return static_cast<double>(SystemClock::Get()->NowNanos()) / 1000; }

}  // namespace kvarve::perf
