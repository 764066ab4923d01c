// Each check against fabricated hosts, answers and command lines.
#include "client/cli/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "storage/base/unique_fd.h"

namespace kvarve::cli {
namespace {

using ::testing::HasSubstr;

const Finding* Find(const Findings& findings, const std::string& check) {
  const auto found = std::find_if(findings.begin(), findings.end(),
                                  [&](const Finding& f) { return f.check == check; });
  return found == findings.end() ? nullptr : &*found;
}

// Fails unless there is such a finding of that level; a finding that is not ok says what to do.
const Finding& Expect(const Findings& findings, const std::string& check, Level level) {
  static const Finding kNone;
  const Finding* const found = Find(findings, check);
  EXPECT_NE(found, nullptr) << check;
  if (found == nullptr) return kNone;
  EXPECT_EQ(found->level, level) << check << ": " << found->text;
  EXPECT_FALSE(found->text.empty()) << check;
  return *found;
}

class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    char name[] = "/tmp/kvarve_doctor_XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    host_.root = name;
  }
  ~DoctorTest() override { std::filesystem::remove_all(host_.root); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = host_.root + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }

  HostView host_;
  Findings findings_;
};

constexpr char kShmem[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

TEST_F(DoctorTest, GpusAndWhatTheirDriverLacks) {
  CheckGpus(absl::NotFoundError("no CUDA driver on this host"), &findings_);
  EXPECT_EQ(Expect(findings_, "GPUs", Level::kOk).text, "no CUDA driver on this host");
  findings_.clear();
  CheckGpus(absl::FailedPreconditionError("the driver speaks CUDA 12.4"), &findings_);
  Expect(findings_, "GPUs", Level::kWarning);
  findings_.clear();
  ComputeDeviceInfo device;
  device.name = "some GPU", device.uuid = "GPU-1", device.compute_major = 9;
  device.driver_version = 13010;
  CheckGpus(std::vector<ComputeDeviceInfo>{device}, &findings_);
  EXPECT_EQ(Expect(findings_, "GPU GPU-1", Level::kOk).text,
            "some GPU, compute 9.0, driver of CUDA 13.1: blocks come through staging");
}

TEST_F(DoctorTest, PagesAreGoodWhenEitherKindIsThere) {
  Write("/proc/meminfo", "HugePages_Total:     100\nHugePages_Free:       60\n");
  Write(kShmem, "always within_size advise [never] deny force\n");
  CheckHost(host_, &findings_);
  EXPECT_THAT(Expect(findings_, "huge pages", Level::kOk).text, HasSubstr("60 of 100"));
  Expect(findings_, "transparent huge pages for shared memory", Level::kOk);

  findings_.clear();
  Write("/proc/meminfo", "HugePages_Total:       0\nHugePages_Free:        0\n");
  Write(kShmem, "always within_size [advise] never deny force\n");
  CheckHost(host_, &findings_);
  Expect(findings_, "huge pages", Level::kOk);
  EXPECT_EQ(Expect(findings_, "transparent huge pages for shared memory", Level::kOk).text,
            "advise");
}

TEST_F(DoctorTest, SingleHugePagesAreAskedForSinceLinux61UnlessDenied) {
  Write("/proc/meminfo", "HugePages_Total:       0\n");
  Write(kShmem, "always within_size advise [never] deny force\n");
  Write("/proc/sys/kernel/osrelease", "6.1.0-28-amd64\n");
  CheckHost(host_, &findings_);
  Expect(findings_, "huge pages", Level::kOk);
  EXPECT_EQ(Expect(findings_, "transparent huge pages for shared memory", Level::kOk).text,
            "never; kvarved asks for single ones");
  findings_.clear();
  Write(kShmem, "always within_size advise never [deny] force\n");
  CheckHost(host_, &findings_);
  Expect(findings_, "transparent huge pages for shared memory", Level::kWarning);
}

TEST_F(DoctorTest, NoLargePagesAreAWarning) {
  Write("/proc/meminfo", "HugePages_Total:       0\n");
  Write("/proc/sys/kernel/osrelease", "5.15.0-91-generic\n");
  Write(kShmem, "always within_size advise [never] deny force\n");
  CheckHost(host_, &findings_);
  EXPECT_THAT(Expect(findings_, "huge pages", Level::kWarning).action,
              HasSubstr("vm.nr_hugepages"));
  EXPECT_THAT(Expect(findings_, "transparent huge pages for shared memory", Level::kWarning).action,
              HasSubstr("shmem_enabled"));
}

TEST_F(DoctorTest, SendBufferOfAStockKernelIsSmall) {
  Write("/proc/sys/net/core/wmem_max", "212992\n");
  CheckHost(host_, &findings_);
  EXPECT_THAT(Expect(findings_, "socket send buffer (net.core.wmem_max)", Level::kWarning).action,
              HasSubstr("wmem_max=1048576"));
  findings_.clear();
  Write("/proc/sys/net/core/wmem_max", "1048576\n");
  CheckHost(host_, &findings_);
  Expect(findings_, "socket send buffer (net.core.wmem_max)", Level::kOk);
}

TEST_F(DoctorTest, SocketAndItsFolder) {
  const std::string folder = host_.root + "/run", path = folder + "/kvarved.sock";
  CheckSocket(path, &findings_);
  EXPECT_THAT(Expect(findings_, "socket folder", Level::kProblem).action,
              HasSubstr("start kvarved"));

  std::filesystem::create_directory(folder);
  ::chmod(folder.c_str(), 0750);
  findings_.clear();
  CheckSocket(path, &findings_);
  EXPECT_THAT(Expect(findings_, "socket folder", Level::kOk).text, HasSubstr("mode 0750"));
  EXPECT_EQ(Expect(findings_, "socket", Level::kProblem).action, "start kvarved");

  std::ofstream(path) << "x";
  findings_.clear();
  CheckSocket(path, &findings_);
  EXPECT_THAT(Expect(findings_, "socket", Level::kProblem).text, HasSubstr("no socket"));

  std::filesystem::remove(path);
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  findings_.clear();
  CheckSocket(path, &findings_);
  Expect(findings_, "socket", Level::kOk);

  ::chmod(folder.c_str(), 0757);
  findings_.clear();
  CheckSocket(path, &findings_);
  EXPECT_THAT(Expect(findings_, "socket folder", Level::kProblem).action, HasSubstr("chmod 0750"));
}

Json Status(uint64_t capacity, uint64_t budget) {
  return {{"version", KVARVE_VERSION},
          {"capacity_bytes", capacity},
          {"chunk_bytes", 0u},
          {"host_budget_bytes", budget},
          {"quarantined_bytes", 0u}};
}

TEST_F(DoctorTest, MemoryOfTheDaemon) {
  Write("/proc/meminfo", "MemAvailable:   1048576 kB\n");  // 1 GiB
  CheckDaemon(Status(512u << 20, 1024u << 20), host_, &findings_);
  Expect(findings_, "version", Level::kOk);
  EXPECT_THAT(Expect(findings_, "memory", Level::kOk).text, HasSubstr("50.0 %"));
  EXPECT_EQ(Find(findings_, "free memory"), nullptr);
  Expect(findings_, "quarantine", Level::kOk);

  findings_.clear();
  Json status = Status(2048u << 20, 2100u << 20);
  status["quarantined_bytes"] = 1024u << 20;
  CheckDaemon(status, host_, &findings_);
  EXPECT_THAT(Expect(findings_, "memory", Level::kProblem).action, HasSubstr("resize"));
  Expect(findings_, "free memory", Level::kWarning);
  Expect(findings_, "quarantine", Level::kWarning);
}

TEST_F(DoctorTest, VersionSkew) {
  EXPECT_TRUE(VersionsFit("0.1.0", "0.1.9"));
  EXPECT_TRUE(VersionsFit("1.4.0", "1.5.2"));
  EXPECT_FALSE(VersionsFit("1.4.0", "1.6.0"));
  EXPECT_FALSE(VersionsFit("0.9.0", "1.0.0"));
  EXPECT_TRUE(VersionsFit("odd", "odd"));
  EXPECT_FALSE(VersionsFit("odd", "1.0.0"));
  EXPECT_FALSE(VersionsFit("", "1.0.0"));
  Json status = Status(1, 100);
  status["version"] = "99.0.0";
  CheckDaemon(status, host_, &findings_);
  Expect(findings_, "version", Level::kWarning);
}

TEST_F(DoctorTest, PythonPackages) {
  Json answer = {{"python", "3.11.2"},       {"vllm", "0.32.0"},   {"known_vllm", "0.32.0"},
                 {"kvarve", KVARVE_VERSION}, {"importable", true}, {"plugin", true},
                 {"folder", "/x"},           {"native", true}};
  CheckPython(answer, &findings_);
  for (const char* check : {"package kvarve", "vLLM plug-in", "vLLM"})
    Expect(findings_, check, Level::kOk);

  findings_.clear();
  answer["vllm"] = "0.32.0+cpu";
  CheckPython(answer, &findings_);
  Expect(findings_, "vLLM", Level::kOk);

  findings_.clear();
  answer["vllm"] = "0.33.0";
  answer["plugin"] = false;
  answer["kvarve"] = "7.0.0";
  answer["native_error"] = "no module";
  CheckPython(answer, &findings_);
  for (const char* check : {"package kvarve", "vLLM plug-in", "vLLM"})
    Expect(findings_, check, Level::kWarning);
  Expect(findings_, "package kvarve: native part", Level::kProblem);

  findings_.clear();
  CheckPython({{"python", "3.11.2"}, {"vllm", nullptr}, {"kvarve", nullptr}, {"importable", false}},
              &findings_);
  Expect(findings_, "package kvarve", Level::kProblem);
  Expect(findings_, "vLLM", Level::kWarning);
}

TEST_F(DoctorTest, ARealPythonAnswers) {
  const absl::StatusOr<Json> answer = AskPython("python3", Json());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->contains("importable"));
  EXPECT_TRUE((*answer)["python"].get<std::string>().starts_with("3."));
  EXPECT_EQ(AskPython("/nonexistent/python", Json()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(AskPython("/bin/true", Json()).ok());
}

constexpr char kGood[] =
    R"({"kv_connector":"KvarveConnector","kv_role":"kv_both","kv_load_failure_policy":"recompute"})";

Findings Engine(std::vector<std::string> words,
                std::map<std::string, std::string> environment = {}) {
  Findings findings;
  CheckEngineCommand(ParseEngineCommand(words, environment), kDefaultEndpoint, &findings);
  return findings;
}

TEST(DoctorEngineTest, GoodCommandLines) {
  for (const Findings& findings :
       {Engine({"vllm", "serve", "m", "--kv-transfer-config", kGood}),
        Engine({"vllm", "serve", "m", std::string("--kv-transfer-config=") + kGood}),
        Engine({"vllm", "serve", "m", std::string("--kv_transfer_config=") + kGood, "--load-format",
                "safetensors"}),
        Engine({"vllm", "serve", "m"}, {{"KVARVE", "1"}}),
        Engine({"KVARVE=1", "vllm", "serve", "m", "--kv-cache-dtype", "fp8"}),
        Engine({"/usr/bin/env", "-u", "KVARVE_ENDPOINT", "KVARVE=1", "vllm", "serve", "m"},
               {{"KVARVE_ENDPOINT", "unix:///elsewhere"}}),
        Engine({"vllm", "serve", "m", "--kv-transfer-config.kv_connector", "KvarveConnector",
                "--kv-transfer-config.kv_role=kv_both"})}) {
    for (const Finding& finding : findings) EXPECT_EQ(finding.level, Level::kOk) << finding.check;
  }
}

TEST(DoctorEngineTest, SettingsThatDefeatTheCache) {
  Expect(Engine({"vllm", "serve", "m"}), "connector", Level::kProblem);
  Expect(Engine({"vllm", "serve", "m"}, {{"KVARVE", "0"}}), "connector", Level::kProblem);
  Expect(Engine({"x", "--kv-transfer-config", "{"}), "connector", Level::kProblem);
  EXPECT_THAT(Expect(Engine({"x", "--kv-transfer-config",
                             R"({"kv_connector":"Other","kv_role":"kv_both"})"},
                            {{"KVARVE", "1"}}),
                     "connector", Level::kProblem)
                  .action,
              HasSubstr("always wins"));
  Expect(Engine({"x", "--kv-transfer-config",
                 R"({"kv_connector":"KvarveConnector","kv_role":"kv_consumer"})"}),
         "kv_role", Level::kProblem);
  Expect(Engine({"x", "--kv-transfer-config", R"({"kv_connector":"KvarveConnector"})"}), "kv_role",
         Level::kProblem);
  EXPECT_THAT(
      Expect(
          Engine(
              {"x", "--kv-transfer-config",
               R"({"kv_connector":"KvarveConnector","kv_role":"kv_both","kv_load_failure_policy":"fail"})"}),
          "kv_load_failure_policy", Level::kWarning)
          .action,
      HasSubstr("set recompute"));
  Expect(
      Engine(
          {"x", "--kv-transfer-config",
           R"({"kv_connector":"KvarveConnector","kv_role":"kv_both","kv_load_failure_policy":"fail",)"
           R"("kv_connector_extra_config":{"allow_fail_policy":true}})"}),
      "kv_load_failure_policy", Level::kProblem);
  const std::map<std::string, std::string> on = {{"KVARVE", "1"}};
  Expect(Engine({"x", "--speculative-config", "{}"}, on), "--speculative-config", Level::kWarning);
  Expect(Engine({"x", "--enable-lora"}, on), "--enable-lora", Level::kWarning);
  Expect(Engine({"x", "--decode-context-parallel-size", "2"}, on), "--decode-context-parallel-size",
         Level::kProblem);
  EXPECT_EQ(
      Find(Engine({"x", "--decode-context-parallel-size=1"}, on), "--decode-context-parallel-size"),
      nullptr);
  Expect(Engine({"x", "--runner", "pooling"}, on), "--runner", Level::kProblem);
  Expect(Engine({"x", "--load-format", "dummy"}, on), "--load-format", Level::kWarning);
  Expect(Engine({"x", "--kv-offloading-size", "4"}, on), "--kv-offloading-size", Level::kProblem);
}

TEST(DoctorEngineTest, TheEngineAsksTheDaemonThatIsLookedAt) {
  const std::map<std::string, std::string> on = {{"KVARVE", "1"}};
  Expect(Engine({"x"}, on), "endpoint", Level::kOk);
  const Findings other = Engine({"KVARVE_ENDPOINT=unix:///tmp/k.sock", "x"}, on);
  const Finding& endpoint = Expect(other, "endpoint", Level::kProblem);
  EXPECT_EQ(endpoint.text, std::string("unix:///tmp/k.sock; doctor looked at ") + kDefaultEndpoint);
  EXPECT_THAT(endpoint.action, HasSubstr("--endpoint unix:///tmp/k.sock doctor"));
  // A setting wins over the variable.
  const Findings dotted = Engine({"x", "--kv-transfer-config.kv_connector_extra_config.endpoint",
                                  "unix:///run/kvarve/kvarved.sock", "--kv-transfer-config", kGood},
                                 {{"KVARVE_ENDPOINT", "unix:///tmp/k.sock"}});
  Expect(dotted, "endpoint", Level::kOk);
  Expect(dotted, "connector", Level::kOk);
}

TEST(DoctorEngineTest, ElementTypesOfThePages) {
  const std::map<std::string, std::string> on = {{"KVARVE", "1"}};
  for (const char* type : {"int8_per_token_head", "fp8_per_token_head", "nvfp4"}) {
    Expect(Engine({"x", "--kv-cache-dtype", type}, on), "--kv-cache-dtype", Level::kProblem);
  }
  Expect(Engine({"x", "--kv-cache-dtype=fp8_e4m3"}, on), "--kv-cache-dtype", Level::kOk);
  Expect(Engine({"x", "--kv-cache-dtype=fp8", "--calculate-kv-scales"}, on),
         "--calculate-kv-scales", Level::kProblem);
  EXPECT_EQ(Find(Engine({"x", "--kv-cache-dtype", "auto"}, on), "--kv-cache-dtype"), nullptr);
}

TEST(DoctorEngineTest, SettingsAsTheConnectorReadsThem) {
  const EngineCommand engine = ParseEngineCommand(
      {"KVARVE_STRICT=1", "x", "--kv-transfer-config.kv_connector_extra_config.block_tokens", "256",
       "--kv-transfer-config.kv_connector_extra_config.digest=full"},
      {{"HOME", "/root"}});
  EXPECT_EQ(
      ConnectorSettings(engine).dump(),
      R"({"extra":{"block_tokens":256,"digest":"full"},"environment":{"KVARVE_STRICT":"1"}})");
}

TEST_F(DoctorTest, ThePythonOfACommand) {
  const auto python_of = [&](const std::string& program) {
    return PythonOf(ParseEngineCommand({program, "serve"}, {{"PATH", "/nowhere:" + host_.root}}));
  };
  Write("/vllm", "#!/opt/venv/bin/python3 -I\nimport x\n");
  Write("/by_env", "#!/usr/bin/env python3\n");
  Write("/shell", "#!/bin/sh\n");
  for (const char* name : {"/vllm", "/by_env", "/shell"})
    ::chmod((host_.root + name).c_str(), 0755);
  EXPECT_EQ(python_of("vllm"), "/opt/venv/bin/python3");
  EXPECT_EQ(python_of(host_.root + "/by_env"), "python3");
  EXPECT_EQ(python_of("/usr/bin/python3.11"), "/usr/bin/python3.11");
  EXPECT_EQ(python_of("shell"), "");
  EXPECT_EQ(python_of("absent"), "");
}

TEST_F(DoctorTest, SettingsThatTheConnectorRefuses) {
  Json answer = {{"python", "3.11.2"},
                 {"importable", true},
                 {"native", true},
                 {"settings", "kvarve: no setting is called 'x'; did you mean 'y'?"}};
  CheckPython(answer, &findings_);
  EXPECT_EQ(Expect(findings_, "connector settings", Level::kProblem).text, answer["settings"]);
  findings_.clear();
  answer["settings"] = "good";
  CheckPython(answer, &findings_);
  Expect(findings_, "connector settings", Level::kOk);
}

Json WithLimits(uint64_t per_uid, uint64_t staging) {
  return {{"sessions", 3u},
          {"staging_bytes", 0u},
          {"limits",
           {{"sessions", 512u},
            {"sessions_per_uid", per_uid},
            {"staging_session_bytes", 256u << 20},
            {"staging_process_bytes", 512u << 20},
            {"staging_total_bytes", staging}}}};
}

Findings Size(std::vector<std::string> words, uint32_t engines, const Json& status,
              std::map<std::string, std::string> environment = {}) {
  Findings findings;
  CheckEngineSize(ParseEngineCommand(words, environment), engines, status, &findings);
  return findings;
}

TEST(DoctorEngineTest, WhatEnginesTakeAgainstTheLimits) {
  constexpr uint64_t kGi = 1ull << 30;
  const std::vector<std::string> tp8 = {"vllm", "serve", "m", "--tensor-parallel-size", "8"};
  const Findings defaults = Size(tp8, 2, WithLimits(32, 2 * kGi));
  const Finding& connections = Expect(defaults, "connections", Level::kProblem);
  EXPECT_THAT(connections.text, HasSubstr("2 engines of 8 workers: 34"));
  EXPECT_THAT(connections.text, HasSubstr("limits.sessions_per_uid is 32"));
  EXPECT_THAT(connections.action, HasSubstr("limits.sessions_per_uid to 34"));
  const Finding& staging = Expect(defaults, "staging", Level::kProblem);
  EXPECT_THAT(staging.text, HasSubstr("4.00 GiB"));
  EXPECT_THAT(staging.action, HasSubstr("limits.staging_total_bytes to 4096MiB"));
  EXPECT_THAT(staging.action, HasSubstr("staging_bytes to 134217728 or less"));
  const Findings enough = Size(tp8, 2, WithLimits(34, 4 * kGi));
  Expect(enough, "connections", Level::kOk);
  Expect(enough, "staging", Level::kOk);
  Expect(Size(tp8, 1, WithLimits(32, 2 * kGi)), "connections", Level::kOk);
  Expect(Size(tp8, 1, WithLimits(32, 2 * kGi)), "staging", Level::kOk);

  // Two by two workers for each of three schedulers, told in other words, each with less staging.
  const Findings other = Size({"vllm", "serve", "m", "-tp", "2", "-pp", "2", "-dp", "3"}, 1,
                              WithLimits(32, kGi), {{"KVARVE_STAGING_BYTES", "67108864"}});
  EXPECT_THAT(Expect(other, "connections", Level::kOk).text, HasSubstr("12 workers: 27"));
  EXPECT_THAT(Expect(other, "staging", Level::kOk).text, HasSubstr("768 MiB"));
  const Findings extra = Size(
      {"x", "--kv-transfer-config", R"({"kv_connector_extra_config":{"staging_bytes":1048576}})"},
      1, WithLimits(32, kGi));
  EXPECT_THAT(Expect(extra, "staging", Level::kOk).text, HasSubstr("1.00 MiB"));
  // Without a daemon's answer the numbers alone.
  EXPECT_THAT(Expect(Size(tp8, 2, Json::object()), "connections", Level::kOk).text,
              HasSubstr("34"));
}

}  // namespace
}  // namespace kvarve::cli
