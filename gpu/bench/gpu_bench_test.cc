// The device benchmark rehearsed on the fake driver: every step, and what becomes of steps that
// hang, fail or die, and of a kernel that answers wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "gpu/bench/bench_steps.h"
#include "gpu/bench/device_cases.h"
#include "gpu/bench/device_cases_testing.h"
#include "gpu/bench/gpu_steps.h"
#include "gpu/emulator/fake_driver.h"
#include "gpu/kernels/kernel_table.h"

namespace kvarve::gpu_bench {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::byte kModule[1] = {};

std::string TempFile(const char* name) {
  return ::testing::TempDir() + "kvarve_gpu_bench_" + std::to_string(::getpid()) + "_" + name;
}

// What the steps wrote, as JSON.
std::vector<Json> Lines(const std::vector<Step>& steps, double total_seconds, int* bad) {
  FILE* const file = std::tmpfile();
  *bad = RunSteps(steps, total_seconds, ::fileno(file));
  std::rewind(file);
  std::vector<Json> lines;
  std::string line;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) {
    if (c != '\n') {
      line.push_back(static_cast<char>(c));
      continue;
    }
    lines.push_back(Json::parse(line));
    line.clear();
  }
  EXPECT_EQ(line, "") << "half a line";
  std::fclose(file);
  return lines;
}

// The status of each step's last line.
std::map<std::string, std::string> Statuses(const std::vector<Json>& lines) {
  std::map<std::string, std::string> statuses;
  for (const Json& line : lines) {
    if (line.contains("status")) statuses[line["step"]] = line["status"];
  }
  return statuses;
}

std::string ErrorOf(const std::vector<Json>& lines, const std::string& step) {
  for (const Json& line : lines) {
    if (line["step"] == step && line.contains("error")) return line["error"];
  }
  return "";
}

// Each process its own fake driver, made when it is asked for.
fake::FakeDriver* g_driver = nullptr;
Plan FakePlan(const std::string& cases) {
  Plan plan;
  plan.tiny = true;
  plan.cases_file = cases;
  plan.source.module = kModule;
  plan.source.driver = []() -> absl::StatusOr<const cuda::Driver*> {
    if (g_driver == nullptr) g_driver = new fake::FakeDriver({});
    return &g_driver->table();
  };
  plan.source.complaints = [] {
    if (g_driver == nullptr) return std::string();
    std::string text = g_driver->leaks();
    for (const std::string& diagnostic : g_driver->diagnostics()) text += "; " + diagnostic;
    return text;
  };
  return plan;
}

TEST(BenchStepsTest, HangsFailuresAndDeathsStopNothing) {
  const auto ok = [](const Report& report) {
    report({{"row", "one"}, {"value", 1.5}});
    return absl::OkStatus();
  };
  const std::vector<Step> steps = {
      {"before", 60, ok},
      {"hangs", 0.3,
       [](const Report& report) -> absl::Status {
         report({{"row", "begun"}});
         for (;;) ::pause();
       }},
      {"fails", 60, [](const Report&) { return absl::InternalError("a planted failure"); }},
      {"dies", 60,
       [](const Report& report) -> absl::Status {
         report({{"row", "begun"}});
         ::raise(SIGKILL);
         return absl::OkStatus();
       }},
      {"leaves", 60, [](const Report&) -> absl::Status { ::_exit(3); }},
      {"after", 60, ok}};
  int bad = 0;
  const std::vector<Json> lines = Lines(steps, 600, &bad);
  EXPECT_EQ(bad, 4);
  EXPECT_EQ(Statuses(lines), (std::map<std::string, std::string>{{"before", "ok"},
                                                                 {"hangs", "deadline"},
                                                                 {"fails", "failed"},
                                                                 {"dies", "failed"},
                                                                 {"leaves", "failed"},
                                                                 {"after", "ok"}}));
  EXPECT_THAT(ErrorOf(lines, "fails"), HasSubstr("a planted failure"));
  EXPECT_EQ(ErrorOf(lines, "dies"), "signal 9");
  EXPECT_EQ(ErrorOf(lines, "leaves"), "exit 3");
  // What a step said before its end is there, in order.
  ASSERT_EQ(lines.size(), 10u);
  EXPECT_EQ(lines[0], (Json{{"step", "before"}, {"row", "one"}, {"value", 1.5}}));
  EXPECT_EQ(lines[2], (Json{{"step", "hangs"}, {"row", "begun"}}));
  EXPECT_EQ(lines[3]["rows"], 1);
}

TEST(BenchStepsTest, WithoutTimeStepsAreSkippedAndSaySo) {
  int bad = 0, ran = 0;
  const std::vector<Json> lines =
      Lines({{"late", 60, [&](const Report&) { return ++ran, absl::OkStatus(); }}}, 0, &bad);
  EXPECT_EQ(bad, 1);
  EXPECT_EQ(Statuses(lines), (std::map<std::string, std::string>{{"late", "skipped"}}));
}

TEST(BenchStepsTest, WhatAStepStartedGoesWithIt) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  int bad = 0;
  Lines({{"parent", 0.3,
          [&](const Report&) -> absl::Status {
            ::fork();
            for (;;) ::pause();
          }}},
        600, &bad);
  EXPECT_EQ(bad, 1);
  ::close(ends[1]);
  char byte;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0) << "somebody still has the pipe";
  ::close(ends[0]);
}

class GpuBenchTest : public ::testing::Test {
 protected:
  // In a process of its own: the shim's fibers are threads to ThreadSanitizer, and then steps,
  // which are forked, may have none.
  static void SetUpTestSuite() {
    path();
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(Record());
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_EQ(status, 0) << "an oracle disagrees, or a file is not what was saved";
    cases() = LoadCases(path()).value();
  }
  static int Record() {
    const std::vector<DeviceCase> recorded = RecordCases(true);
    if (::testing::Test::HasFailure() || !SaveCases(recorded, path()).ok()) return 1;
    const auto loaded = LoadCases(path());
    if (!loaded.ok() || loaded->size() != recorded.size()) return 2;
    for (size_t i = 0; i < recorded.size(); ++i) {
      if (!((*loaded)[i] == recorded[i])) return 3;
    }
    return 0;
  }
  static void TearDownTestSuite() { std::remove(path().c_str()); }
  static std::vector<DeviceCase>& cases() {
    static auto& all = *new std::vector<DeviceCase>;
    return all;
  }
  static const std::string& path() {  // of the test's process, also in its children
    static const auto& name = *new std::string(TempFile("cases"));
    return name;
  }
};

TEST_F(GpuBenchTest, TheCasesHaveEveryKernel) {
  std::set<std::string> expected, there;
  for (const KernelInfo& info : kKernels) expected.insert(info.name);
  for (const DeviceCase& which : cases()) {
    for (const CaseLaunch& launch : which.launches) there.insert(launch.kernel);
    EXPECT_TRUE(!which.numbers.empty() || !which.changed.empty()) << which.name;
  }
  EXPECT_EQ(there, expected);
}

TEST_F(GpuBenchTest, AFileThatIsNoneIsRefused) {
  EXPECT_EQ(LoadCases(TempFile("none")).status().code(), absl::StatusCode::kNotFound);
  const std::string broken = TempFile("broken");
  std::ofstream(broken) << "no cases";
  EXPECT_EQ(LoadCases(broken).status().code(), absl::StatusCode::kInvalidArgument);
  DeviceCase outside = cases().front();
  outside.addresses.push_back(static_cast<uint32_t>(outside.image.size()));
  ASSERT_TRUE(SaveCases({outside}, broken).ok());
  EXPECT_EQ(LoadCases(broken).status().code(), absl::StatusCode::kInvalidArgument);
  std::remove(broken.c_str());
}

TEST_F(GpuBenchTest, EveryStepRunsOnTheFakeDriver) {
  std::vector<Step> steps = GpuSteps(FakePlan(path()));
  double together = 0;
  for (Step& step : steps) {
    together += step.deadline_seconds;
    step.deadline_seconds = 100;  // of a device's; this is a CPU, perhaps under a sanitizer
  }
  EXPECT_LE(together, kTotalSeconds);
  int bad = 0;
  const std::vector<Json> lines = Lines(steps, 600, &bad);
  for (const Step& step : steps) EXPECT_EQ(ErrorOf(lines, step.name), "") << step.name;
  EXPECT_EQ(bad, 0);
  std::map<std::string, std::set<std::string>> rows;
  size_t kernels = 0;
  for (const Json& line : lines) {
    if (!line.contains("row")) continue;
    rows[line["step"]].insert(line["row"].get<std::string>());
    if (line["step"] == "kernels") {
      ++kernels;
      EXPECT_TRUE(line["right"].get<bool>()) << line;
      EXPECT_LE(line["worst"].get<double>(), 1) << line;
    }
    if (line["step"] == "registration" && line["registered"].get<bool>()) {
      EXPECT_TRUE(line["reads"].get<bool>()) << line;
      EXPECT_TRUE(line["sees_later_writes"].get<bool>()) << line;
    }
  }
  EXPECT_EQ(kernels, cases().size());
  EXPECT_EQ(rows["registration"].size(), 4u);
  EXPECT_EQ(rows["copies"], (std::set<std::string>{"one copy", "copies", "kernel"}));
  EXPECT_EQ(rows["onload"],
            (std::set<std::string>{"onload", "offload", "onload beside attention"}));
  EXPECT_EQ(rows["memory"],
            (std::set<std::string>{"copy within the device", "gather", "scatter", "gather, fp8",
                                   "scatter, fp8", "gather, int4", "scatter, int4", "attention"}));
  EXPECT_EQ(rows["processes"], (std::set<std::string>{"agent killed", "engine killed"}));
}

TEST_F(GpuBenchTest, AWrongAnswerIsNamedAndTheOtherCasesGoOn) {
  std::vector<DeviceCase> planted = cases();
  const auto with_bytes =
      std::ranges::find_if(planted, [](const auto& c) { return !c.changed.empty(); });
  const auto with_numbers =
      std::ranges::find_if(planted, [](const auto& c) { return !c.numbers.empty(); });
  ASSERT_TRUE(with_bytes != planted.end() && with_numbers != planted.end());
  with_bytes->changed[0].bytes[0] ^= 1;
  with_numbers->numbers[0].want[3] += 1;
  const std::string file = TempFile("planted");
  ASSERT_TRUE(SaveCases({*with_bytes, *with_numbers, planted.front(), planted.back()}, file).ok());
  std::vector<Step> steps = GpuSteps(FakePlan(file));
  std::erase_if(steps, [](const Step& step) { return step.name != "kernels"; });
  steps[0].deadline_seconds = 100;
  int bad = 0;
  const std::vector<Json> lines = Lines(steps, 600, &bad);
  EXPECT_EQ(bad, 1);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_THAT(lines[0]["wrong"].get<std::string>(), HasSubstr("byte "));
  EXPECT_THAT(lines[1]["wrong"].get<std::string>(), HasSubstr("number 3 is"));
  EXPECT_EQ(lines[3]["right"], true);
  EXPECT_THAT(ErrorOf(lines, "kernels"), HasSubstr("of 4 cases are wrong"));
  std::remove(file.c_str());
}

TEST_F(GpuBenchTest, WithoutADriverEveryStepSaysWhy) {
  Plan plan = FakePlan(path());
  plan.source.driver = []() -> absl::StatusOr<const cuda::Driver*> {
    return absl::NotFoundError("no CUDA driver on this host");
  };
  int bad = 0;
  std::vector<Step> steps = GpuSteps(plan);
  std::erase_if(steps, [](const Step& step) { return step.name == "sanitizer"; });
  const std::vector<Json> lines = Lines(steps, 600, &bad);
  EXPECT_EQ(bad, static_cast<int>(steps.size()));
  for (const Step& step : steps) EXPECT_NE(ErrorOf(lines, step.name), "") << step.name;
  EXPECT_THAT(ErrorOf(lines, "environment"), HasSubstr("no CUDA driver on this host"));
}

}  // namespace
}  // namespace kvarve::gpu_bench
