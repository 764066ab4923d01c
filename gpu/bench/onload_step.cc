// Blocks from host memory into pages, layer by layer, each way of moving: how soon the first layers
// are there, how fast all are, and how much slower an engine's attention runs meanwhile.
#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

#include "gpu/bench/bench_pages.h"
#include "gpu/bench/gpu_steps.h"
#include "gpu/transfer/host_registry.h"
#include "gpu/transfer/transfer.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::gpu_bench {
namespace {

using Time = std::chrono::steady_clock;

constexpr uint32_t kPageTokens = 16;
constexpr int64_t kRegistrationNanos = 15'000'000'000;

double Since(Time::time_point begin) {
  return std::chrono::duration<double>(Time::now() - begin).count();
}

struct Rig {
  std::shared_ptr<ComputeDevice> device;
  int rounds = 1;
  BlockLayout layout;
  DeviceMemory pages;
  std::vector<std::byte> blocks;  // before what registers them
  std::vector<int64_t> ids;
  std::vector<BlockMove> moves;
  std::shared_ptr<HostRegistry> registry;
  std::unique_ptr<DeviceStream> engine;  // where attention runs
  std::unique_ptr<AttentionLoop> attention;
};

absl::Status Make(const Plan& plan, Rig* rig) {
  KV_ASSIGN_OR_RETURN(rig->device, Open(plan));
  rig->rounds = Rounds(plan);
  rig->layout = plan.tiny ? BlockLayout{4, 1, 32, 16, 16, 2} : BlockLayout{32, 8, 128, 128, 128, 2};
  const uint64_t count = plan.tiny ? 2 : Transfer::kMaxBlocks;  // 256 MiB
  const uint64_t per_block = rig->layout.tokens / kPageTokens, all = count * per_block;
  KV_ASSIGN_OR_RETURN(rig->pages, rig->device->Allocate(ViewBytes(
                                      rig->layout, static_cast<int64_t>(all), kPageTokens)));
  rig->blocks.resize(count * rig->layout.BlockBytes());
  rig->ids.resize(all);
  for (uint64_t i = 0; i < all; ++i) rig->ids[i] = static_cast<int64_t>((i * 5 + 3) % all);
  if (std::gcd(all, uint64_t{5}) != 1)
    return absl::InternalError("pages that are not a permutation");
  for (uint64_t i = 0; i < count; ++i) {
    rig->moves.push_back(
        {std::span(rig->blocks).subspan(i * rig->layout.BlockBytes(), rig->layout.BlockBytes()),
         std::span(rig->ids).subspan(i * per_block, per_block)});
  }
  rig->registry = std::make_shared<HostRegistry>(rig->device);
  rig->registry->Add(rig->blocks, HostRegistry::Use::kReadWrite);
  if (!rig->registry->WaitIdle(kRegistrationNanos) || rig->registry->stats().failed > 0)
    return absl::InternalError("registration: " + rig->registry->stats().last_error);
  KV_ASSIGN_OR_RETURN(rig->engine, rig->device->NewStream());
  KV_ASSIGN_OR_RETURN(rig->attention, AttentionLoop::Create(rig->device, plan.tiny ? 1 : 16,
                                                            plan.tiny ? 32 : 8192, plan.tiny));
  return absl::OkStatus();
}

// Attention again and again while `busy` keeps the bus at work; seconds a run.
absl::StatusOr<double> AttentionSeconds(const Rig& rig, int runs,
                                        const std::function<absl::Status()>& busy) {
  const Time::time_point begin = Time::now();
  for (int i = 0; i < runs; ++i) {
    KV_RETURN_IF_ERROR(rig.attention->Run(*rig.engine));
    KV_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceEvent> event, rig.engine->Record());
    for (absl::StatusOr<bool> done = event->Done(); !done.ok() || !*done; done = event->Done()) {
      KV_RETURN_IF_ERROR(done.status());
      KV_RETURN_IF_ERROR(busy());
    }
  }
  return Since(begin) / runs;
}

// A stream of an engine's that only waits, for the time of the first layer.
class FirstLayer {
 public:
  static absl::StatusOr<double> Seconds(const cuda::Driver& driver, Transfer& transfer,
                                        const Rig& rig) {
    cuda::Context context = nullptr, popped = nullptr;
    KV_RETURN_IF_ERROR(
        cuda::ToStatus(driver, driver.DevicePrimaryCtxRetain(&context, 0), "retain"));
    driver.CtxPushCurrent(context);
    const absl::StatusOr<double> seconds = InContext(driver, transfer, rig);
    driver.CtxPopCurrent(&popped);
    driver.DevicePrimaryCtxRelease(0);
    return seconds;
  }

 private:
  static absl::StatusOr<double> InContext(const cuda::Driver& driver, Transfer& transfer,
                                          const Rig& rig) {
    cuda::Stream stream = nullptr;
    cuda::Event event = nullptr;
    KV_RETURN_IF_ERROR(cuda::ToStatus(
        driver, driver.StreamCreateWithPriority(&stream, cuda::kStreamNonBlocking, 0), "stream"));
    KV_RETURN_IF_ERROR(
        cuda::ToStatus(driver, driver.EventCreate(&event, cuda::kEventDisableTiming), "event"));
    const absl::StatusOr<double> seconds = Shortest(driver, transfer, rig, stream, event);
    driver.EventDestroy(event);
    driver.StreamDestroy(stream);
    return seconds;
  }

  static absl::StatusOr<double> Shortest(const cuda::Driver& driver, Transfer& transfer,
                                         const Rig& rig, cuda::Stream stream, cuda::Event event) {
    double shortest = std::numeric_limits<double>::infinity();
    for (int i = 0; i < rig.rounds; ++i) {
      const Time::time_point begin = Time::now();
      KV_ASSIGN_OR_RETURN(const auto move,
                          transfer.Start(MoveDirection::kScatter, rig.moves, 0, rig.layout.tokens));
      KV_RETURN_IF_ERROR(move->EngineAfterLayer(reinterpret_cast<EngineStream>(stream), 0));
      KV_RETURN_IF_ERROR(cuda::ToStatus(driver, driver.EventRecord(event, stream), "record"));
      KV_RETURN_IF_ERROR(cuda::ToStatus(driver, driver.EventSynchronize(event), "wait"));
      shortest = std::min(shortest, Since(begin));
    }
    return shortest;
  }
};

absl::Status Measure(const Plan& plan, const Rig& rig, MoveMethod method, bool nhd,
                     double attention_alone, int runs, const Report& report) {
  Transfer::Options options;
  options.method = method;
  options.ring_bytes = plan.tiny ? kMiB : 512 * kMiB;
  options.groups = 8;
  const auto pages = static_cast<int64_t>(rig.ids.size());
  KV_ASSIGN_OR_RETURN(
      const std::unique_ptr<Transfer> transfer,
      Transfer::Create(rig.device, rig.registry,
                       DeviceView(rig.pages.address(), rig.layout, pages, kPageTokens, nhd),
                       rig.layout, options));
  const auto all = static_cast<double>(rig.blocks.size());
  for (const MoveDirection direction : {MoveDirection::kScatter, MoveDirection::kGather}) {
    KV_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(rig.rounds, [&]() -> absl::Status {
                          KV_ASSIGN_OR_RETURN(
                              const auto move,
                              transfer->Start(direction, rig.moves, 0, rig.layout.tokens));
                          return move->Wait();
                        }));
    report({{"row", direction == MoveDirection::kScatter ? "onload" : "offload"},
            {"way", MoveMethodName(method)},
            {"pages", nhd ? "NHD" : "HND"},
            {"bytes", rig.blocks.size()},
            {"gb_per_second", all / seconds / 1e9}});
  }
  KV_ASSIGN_OR_RETURN(const cuda::Driver* driver, plan.source.driver());
  KV_ASSIGN_OR_RETURN(const double first, FirstLayer::Seconds(*driver, *transfer, rig));
  std::unique_ptr<Move> move;
  uint64_t moved = 0;
  const Time::time_point begin = Time::now();
  KV_ASSIGN_OR_RETURN(const double beside, AttentionSeconds(rig, runs, [&]() -> absl::Status {
                        if (move != nullptr) {
                          KV_ASSIGN_OR_RETURN(const bool done, move->Done());
                          if (!done) return absl::OkStatus();
                        }
                        auto next = transfer->Start(MoveDirection::kScatter, rig.moves, 0,
                                                    rig.layout.tokens);
                        KV_RETURN_IF_ERROR(next.status());
                        move = *std::move(next);
                        ++moved;
                        return absl::OkStatus();
                      }));
  if (move != nullptr) KV_RETURN_IF_ERROR(move->Wait());
  report({{"row", "onload beside attention"},
          {"way", MoveMethodName(method)},
          {"pages", nhd ? "NHD" : "HND"},
          {"first_layers_ms", first * 1e3},
          {"attention_alone_ms", attention_alone * 1e3},
          {"attention_beside_ms", beside * 1e3},
          {"slower", beside / attention_alone},
          {"gb_per_second", all * static_cast<double>(moved) / Since(begin) / 1e9}});
  return absl::OkStatus();
}

}  // namespace

absl::Status RunOnload(const Plan& plan, const Report& report) {
  Rig rig;
  KV_RETURN_IF_ERROR(Make(plan, &rig));
  const int runs = plan.tiny ? 2 : 100;
  const auto nothing = [] { return absl::OkStatus(); };
  KV_RETURN_IF_ERROR(AttentionSeconds(rig, runs, nothing).status());
  KV_ASSIGN_OR_RETURN(const double alone, AttentionSeconds(rig, runs, nothing));
  for (const bool nhd : {false, true}) {
    for (const MoveMethod method : {MoveMethod::kCopies, MoveMethod::kKernel, MoveMethod::kStaged})
      KV_RETURN_IF_ERROR(Measure(plan, rig, method, nhd, alone, runs, report));
  }
  return absl::OkStatus();
}

}  // namespace kvarve::gpu_bench
