#include "gpu/bench/gpu_steps.h"

#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "absl/strings/str_format.h"
#include "gpu/bench/device_cases.h"
#include "gpu/device/cuda_device.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::gpu_bench {
namespace {

using RunStep = absl::Status (*)(const Plan&, const Report&);

Step Of(const Plan& plan, const char* name, double deadline_seconds, RunStep run) {
  return {name, deadline_seconds, [plan, run](const Report& report) {
            KV_RETURN_IF_ERROR(run(plan, report));
            const std::string complaints = plan.source.complaints ? plan.source.complaints() : "";
            return complaints.empty() ? absl::OkStatus() : absl::InternalError(complaints);
          }};
}

// What a command says, or nothing where there is no such.
std::string Said(const std::string& command) {
  std::string text;
  FILE* const pipe = ::popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return text;
  char buffer[512];
  while (text.size() < 2048 && std::fgets(buffer, sizeof buffer, pipe) != nullptr) text += buffer;
  ::pclose(pipe);
  return text;
}

std::string TextOf(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::vector<Step> GpuSteps(const Plan& plan) {
  return {
      Of(plan, "environment", 15, RunEnvironment), Of(plan, "registration", 20, RunRegistration),
      Of(plan, "kernels", 40, RunKernels),         Of(plan, "copies", 40, RunCopies),
      Of(plan, "onload", 30, RunOnload),           Of(plan, "memory", 35, RunMemory),
      Of(plan, "processes", 25, RunProcesses),     Of(plan, "sanitizer", 30, RunSanitizer)};
}

absl::StatusOr<std::shared_ptr<ComputeDevice>> Open(const Plan& plan) {
  KV_ASSIGN_OR_RETURN(const cuda::Driver* driver, plan.source.driver());
  return OpenCudaDevice(*driver, plan.uuid, plan.source.module);
}

absl::StatusOr<double> MedianSeconds(int rounds, const std::function<absl::Status()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i <= rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    KV_RETURN_IF_ERROR(work());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (i > 0) seconds.push_back(took.count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
  return seconds[static_cast<size_t>(rounds) / 2];
}

absl::Status Finish(DeviceStream& stream) {
  KV_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceEvent> event, stream.Record());
  return event->Wait();
}

absl::StatusOr<std::unique_ptr<HostBuffer>> HostBuffer::Create(
    std::shared_ptr<ComputeDevice> device, uint64_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return absl::ResourceExhaustedError("no host memory");
  std::unique_ptr<HostBuffer> buffer(
      new HostBuffer(std::move(device), {static_cast<std::byte*>(memory), bytes}));
  KV_ASSIGN_OR_RETURN(buffer->address_,
                      buffer->device_->Register(buffer->bytes_, HostAccess::kReadWrite));
  return buffer;
}

HostBuffer::~HostBuffer() {
  if (address_ != 0) device_->Unregister(bytes_.data()).IgnoreError();
  ::munmap(bytes_.data(), bytes_.size());
}

absl::Status FillNumbers(ComputeDevice& device, const DeviceMemory& memory, HostBuffer& host) {
  std::minstd_rand random(1);
  const std::span<std::byte> bytes = host.bytes();
  for (size_t i = 0; i + 2 <= bytes.size(); i += 2) {
    // A sign, and an exponent of 1/8 to 1: nothing that is not a number.
    const uint32_t r = random();
    const auto number =
        static_cast<uint16_t>((r & 0x8000) | (124 + (r >> 20 & 3)) << 7 | (r >> 4 & 127));
    std::memcpy(bytes.data() + i, &number, sizeof number);
  }
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceStream> stream, device.NewStream());
  for (uint64_t at = 0; at < memory.bytes(); at += bytes.size()) {
    const CopyJob job{host.address(), memory.address() + at,
                      std::min<uint64_t>(bytes.size(), memory.bytes() - at)};
    KV_RETURN_IF_ERROR(stream->Copy({&job, 1}, CopyOrder::kAny));
  }
  return Finish(*stream);
}

absl::Status RunEnvironment(const Plan& plan, const Report& report) {
  utsname kernel{};
  ::uname(&kernel);
  const std::string memory = TextOf("/proc/meminfo");
  report({{"row", "host"},
          {"system", absl::StrFormat("%s %s %s", kernel.sysname, kernel.release, kernel.machine)},
          {"threads", std::thread::hardware_concurrency()},
          {"memory", memory.substr(0, memory.find('\n'))}});
  report({{"row", "nvidia-smi"},
          {"said", Said("nvidia-smi --query-gpu=name,uuid,driver_version,pcie.link.gen.current,"
                        "pcie.link.width.current,memory.total,power.limit,mig.mode.current "
                        "--format=csv")}});
  KV_ASSIGN_OR_RETURN(const cuda::Driver* driver, plan.source.driver());
  KV_ASSIGN_OR_RETURN(const std::vector<ComputeDeviceInfo> devices, ListCudaDevices(*driver));
  for (const ComputeDeviceInfo& info : devices) {
    report({{"row", "device"},
            {"name", info.name},
            {"uuid", info.uuid},
            {"compute", absl::StrFormat("%d.%d", info.compute_major, info.compute_minor)},
            {"driver", cuda::VersionText(info.driver_version)},
            {"read_only_registration", info.read_only_registration}});
  }
  const auto begin = std::chrono::steady_clock::now();
  KV_ASSIGN_OR_RETURN(const std::shared_ptr<ComputeDevice> device, Open(plan));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  report({{"row", "opened"}, {"uuid", device->info().uuid}, {"seconds", took.count()}});
  return absl::OkStatus();
}

absl::Status RunKernels(const Plan& plan, const Report& report) {
  KV_ASSIGN_OR_RETURN(const std::vector<DeviceCase> cases, LoadCases(plan.cases_file));
  KV_ASSIGN_OR_RETURN(const std::shared_ptr<ComputeDevice> device, Open(plan));
  uint64_t largest = 0;
  for (const DeviceCase& which : cases) largest = std::max<uint64_t>(largest, which.image.size());
  KV_ASSIGN_OR_RETURN(const DeviceMemory memory, device->Allocate(largest));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<HostBuffer> host,
                      HostBuffer::Create(device, RoundUp(largest, 4096)));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceStream> stream, device->NewStream());
  size_t wrong = 0;
  for (const DeviceCase& which : cases) {
    KV_ASSIGN_OR_RETURN(const CaseAnswer answer, Replay(which, *stream, *host, memory));
    Json row = {{"row", which.name}, {"right", answer.wrong.empty()}, {"worst", answer.worst}};
    if (!answer.wrong.empty()) row["wrong"] = answer.wrong;
    report(row);
    wrong += answer.wrong.empty() ? 0 : 1;
  }
  if (wrong == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("%d of %d cases are wrong", wrong, cases.size()));
}

// The kernels once more, under NVIDIA's memory checker, where the machine has it.
absl::Status RunSanitizer(const Plan& plan, const Report& report) {
  const std::string tool = Said("command -v compute-sanitizer");
  if (plan.tiny || tool.empty()) {
    report({{"row", "compute-sanitizer"}, {"there", !tool.empty()}, {"ran", false}});
    return absl::OkStatus();
  }
  const std::string line = TextOf("/proc/self/cmdline");
  std::string command = "compute-sanitizer --tool memcheck --error-exitcode 9";
  for (size_t at = 0; at < line.size(); at += std::strlen(line.c_str() + at) + 1)
    command += absl::StrFormat(" '%s'", line.c_str() + at);
  // The last of two options of a name counts.
  const std::string said =
      Said("{ " + command + " --steps kernels --out /dev/null; echo exit $?; } | tail -n 5");
  report({{"row", "compute-sanitizer"}, {"there", true}, {"ran", true}, {"said", said}});
  if (said.find("exit 0\n") != std::string::npos) return absl::OkStatus();
  return absl::InternalError("compute-sanitizer: " + said);
}

}  // namespace kvarve::gpu_bench
