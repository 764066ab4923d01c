// Copies between host and device, of many pages at random places, beside one long copy: what of the
// bus each way of copying keeps.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "gpu/bench/gpu_steps.h"
#include "gpu/kernels/plan.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::gpu_bench {
namespace {

enum class Way { kToDevice, kToHost, kBoth };
struct WayName {
  Way way;
  const char* name;
};
constexpr WayName kWays[] = {
    {Way::kToDevice, "to the device"}, {Way::kToHost, "to the host"}, {Way::kBoth, "both"}};

class Copies {
 public:
  static absl::StatusOr<std::unique_ptr<Copies>> Create(const Plan& plan, uint64_t bytes) {
    auto copies = std::make_unique<Copies>();
    copies->bytes_ = bytes;
    copies->rounds_ = Rounds(plan);
    KV_ASSIGN_OR_RETURN(copies->device_, Open(plan));
    for (Side& side : copies->sides_) {
      KV_ASSIGN_OR_RETURN(side.memory, copies->device_->Allocate(bytes));
      KV_ASSIGN_OR_RETURN(side.host, HostBuffer::Create(copies->device_, bytes));
      KV_ASSIGN_OR_RETURN(side.jobs, copies->device_->Allocate(kMaxJobs * sizeof(CopyJob)));
      KV_ASSIGN_OR_RETURN(side.job_host,
                          HostBuffer::Create(copies->device_, kMaxJobs * sizeof(CopyJob)));
      KV_ASSIGN_OR_RETURN(side.stream, copies->device_->NewStream());
    }
    return copies;
  }

  // Pages of `page` bytes, `count` of them; bytes a second, all directions together.
  absl::StatusOr<double> Measure(Way way, uint64_t page, uint64_t count, bool by_kernel) {
    for (int i = 0; i < 2; ++i) {
      Side& side = sides_[i];
      side.list = Scattered(side, page, count, i == 1);
      const CopyJob table{side.job_host->address(), side.jobs.address(), count * sizeof(CopyJob)};
      std::memcpy(side.job_host->bytes().data(), side.list.data(), count * sizeof(CopyJob));
      KV_RETURN_IF_ERROR(side.stream->Copy({&table, 1}, CopyOrder::kStream));
      KV_RETURN_IF_ERROR(Finish(*side.stream));
    }
    KV_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(rounds_, [&]() -> absl::Status {
                          for (int i = 0; i < 2; ++i) {
                            if (Wanted(way, i))
                              KV_RETURN_IF_ERROR(Queue(sides_[i], i == 1, by_kernel));
                          }
                          for (int i = 0; i < 2; ++i) {
                            if (Wanted(way, i)) KV_RETURN_IF_ERROR(Finish(*sides_[i].stream));
                          }
                          return absl::OkStatus();
                        }));
    return static_cast<double>(page * count * (way == Way::kBoth ? 2 : 1)) / seconds;
  }

  static constexpr uint64_t kMaxJobs = 16384;

 private:
  struct Side {  // 0: to the device, 1: to the host
    DeviceMemory memory, jobs;
    std::unique_ptr<HostBuffer> host, job_host;
    std::unique_ptr<DeviceStream> stream;
    std::vector<CopyJob> list;
  };
  static bool Wanted(Way way, int side) {
    return way == Way::kBoth || (way == Way::kToHost) == (side == 1);
  }
  std::vector<CopyJob> Scattered(const Side& side, uint64_t page, uint64_t count, bool to_host) {
    std::vector<uint64_t> places(bytes_ / page);
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), std::mt19937_64(count + page));
    std::vector<CopyJob> jobs;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t host = side.host->address() + i * page;
      const uint64_t memory = side.memory.address() + places[i] * page;
      jobs.push_back(to_host ? CopyJob{memory, host, page} : CopyJob{host, memory, page});
    }
    return jobs;
  }
  absl::Status Queue(Side& side, bool to_host, bool by_kernel) {
    if (!by_kernel)
      return side.stream->Copy(side.list, to_host ? CopyOrder::kStream : CopyOrder::kAny);
    KV_ASSIGN_OR_RETURN(const Launch launch, PlanBatchCopy(side.list, side.jobs.address()));
    return side.stream->Run(launch);
  }

  uint64_t bytes_ = 0;
  int rounds_ = 1;
  std::shared_ptr<ComputeDevice> device_;
  Side sides_[2];
};

}  // namespace

absl::Status RunCopies(const Plan& plan, const Report& report) {
  const uint64_t bytes = plan.tiny ? kMiB : 256 * kMiB, most = bytes / 2;
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<Copies> copies, Copies::Create(plan, bytes));
  double limits[3] = {};
  for (const WayName& way : kWays) {
    KV_ASSIGN_OR_RETURN(limits[static_cast<int>(way.way)],
                        copies->Measure(way.way, bytes, 1, false));
    report({{"row", "one copy"},
            {"direction", way.name},
            {"bytes", bytes},
            {"gb_per_second", limits[static_cast<int>(way.way)] / 1e9}});
  }
  const std::vector<uint64_t> counts =
      plan.tiny ? std::vector<uint64_t>{4} : std::vector<uint64_t>{64, 1024, 16384};
  for (const uint64_t kib : {4, 8, 16, 28, 32, 64, 256, 1024}) {
    for (const uint64_t count : counts) {
      const uint64_t page = kib * kKiB;
      if (page * count > most && count != counts.front()) continue;
      if (page * count > bytes) continue;
      for (const WayName& way : kWays) {
        for (const bool by_kernel : {false, true}) {
          KV_ASSIGN_OR_RETURN(const double speed, copies->Measure(way.way, page, count, by_kernel));
          report({{"row", by_kernel ? "kernel" : "copies"},
                  {"direction", way.name},
                  {"page_bytes", page},
                  {"pages", count},
                  {"gb_per_second", speed / 1e9},
                  {"of_one_copy", speed / limits[static_cast<int>(way.way)]}});
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace kvarve::gpu_bench
