// What of the device's own memory each kernel gets: copies within it as the ceiling, movers and
// packers between pages and blocks, attention over batches and contexts.
#include <cstring>
#include <numeric>

#include "gpu/bench/bench_pages.h"
#include "gpu/bench/gpu_steps.h"
#include "gpu/kernels/plan.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::gpu_bench {
namespace {

constexpr uint32_t kPageTokens = 16, kGroup = 64;
constexpr uint64_t kTables = kMiB;  // room for tables of a launch

struct Rig {
  std::shared_ptr<ComputeDevice> device;
  std::unique_ptr<DeviceStream> stream;
  double ceiling = 0;  // bytes a second, read and written
  int times = 1, rounds = 1;
};

// Rounds of `times` runs each, so that a round is long beside a launch.
absl::StatusOr<double> SecondsOf(const Rig& rig, const std::function<absl::Status()>& queue) {
  KV_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(rig.rounds, [&]() -> absl::Status {
                        for (int i = 0; i < rig.times; ++i) KV_RETURN_IF_ERROR(queue());
                        return Finish(*rig.stream);
                      }));
  return seconds / rig.times;
}

void Say(const Report& report, const Rig& rig, Json row, double bytes, double seconds) {
  row["microseconds"] = seconds * 1e6;
  row["gb_per_second"] = bytes / seconds / 1e9;
  row["of_ceiling"] = bytes / seconds / rig.ceiling;
  report(row);
}

absl::Status Ceiling(const Plan& plan, const Report& report, Rig* rig) {
  const uint64_t bytes = plan.tiny ? kMiB : kGiB;
  KV_ASSIGN_OR_RETURN(const DeviceMemory memory, rig->device->Allocate(2 * bytes));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<HostBuffer> host,
                      HostBuffer::Create(rig->device, plan.tiny ? 64 * kKiB : 16 * kMiB));
  KV_RETURN_IF_ERROR(FillNumbers(*rig->device, memory, *host));
  const CopyJob job{memory.address(), memory.address() + bytes, bytes};
  KV_ASSIGN_OR_RETURN(const double seconds, SecondsOf(*rig, [&] {
                        return rig->stream->Copy({&job, 1}, CopyOrder::kStream);
                      }));
  rig->ceiling = 2.0 * static_cast<double>(bytes) / seconds;
  Say(report, *rig, {{"row", "copy within the device"}, {"bytes", bytes}}, 2.0 * bytes, seconds);
  return absl::OkStatus();
}

// One of the movers or packers over whole blocks, all in device memory.
struct Moves {
  BlockLayout layout;
  KvView view;
  DeviceMemory pages, blocks, tables;
  std::vector<int64_t> ids;
  std::vector<uint64_t> at;
  std::vector<float> scales;
  std::unique_ptr<HostBuffer> host;
};

absl::StatusOr<std::unique_ptr<Moves>> MakeMoves(const Plan& plan, const Rig& rig, bool nhd) {
  auto moves = std::make_unique<Moves>();
  moves->layout =
      plan.tiny ? BlockLayout{2, 2, 32, 64, 64, 2} : BlockLayout{32, 8, 128, 128, 128, 2};
  const uint64_t count = plan.tiny ? 2 : 16, per_block = moves->layout.tokens / kPageTokens;
  const auto all = static_cast<int64_t>(count * per_block);
  KV_ASSIGN_OR_RETURN(moves->pages,
                      rig.device->Allocate(ViewBytes(moves->layout, all, kPageTokens)));
  KV_ASSIGN_OR_RETURN(moves->blocks, rig.device->Allocate(count * moves->layout.BlockBytes()));
  KV_ASSIGN_OR_RETURN(moves->tables, rig.device->Allocate(kTables));
  KV_ASSIGN_OR_RETURN(moves->host, HostBuffer::Create(rig.device, kTables));
  KV_RETURN_IF_ERROR(FillNumbers(*rig.device, moves->pages, *moves->host));
  moves->view = DeviceView(moves->pages.address(), moves->layout, all, kPageTokens, nhd);
  for (int64_t i = 0; i < all; ++i) moves->ids.push_back((i * 5 + 3) % all);
  for (uint64_t i = 0; i < count; ++i)
    moves->at.push_back(moves->blocks.address() + i * moves->layout.BlockBytes());
  return moves;
}

absl::Status MeasureMove(const Rig& rig, Moves* moves, KernelFamily family, const char* name,
                         bool nhd, const Report& report) {
  std::vector<MoveTensor> tensors = MoveTensors(moves->view, moves->layout);
  const bool fp8 = family == KernelFamily::kGatherFp8 || family == KernelFamily::kScatterFp8;
  const bool int4 = family == KernelFamily::kGatherInt4 || family == KernelFamily::kScatterInt4;
  if (fp8) {
    KV_ASSIGN_OR_RETURN(tensors, Fp8Tensors(moves->view, moves->layout));
  } else if (int4) {
    KV_ASSIGN_OR_RETURN(tensors, Int4Tensors(moves->view, moves->layout, kGroup));
  }
  // [tensors][page ids][blocks][scales]
  PackRequest request;
  request.group = kGroup;
  uint64_t end = 0;
  const auto put = [&](const void* from, uint64_t bytes) {
    std::memcpy(moves->host->bytes().data() + end, from, bytes);
    return moves->tables.address() + std::exchange(end, RoundUp(end + bytes, 256));
  };
  MoveRequest& move = request.move;
  move.page_ids = moves->ids, move.blocks = moves->at, move.token_end = moves->layout.tokens;
  move.tensors_at = put(tensors.data(), tensors.size() * sizeof(MoveTensor));
  move.page_ids_at = put(moves->ids.data(), moves->ids.size() * sizeof(int64_t));
  move.blocks_at = put(moves->at.data(), moves->at.size() * sizeof(uint64_t));
  moves->scales.assign(moves->at.size() * tensors.size() * moves->layout.kv_heads, 0.25f);
  request.scales_at = put(moves->scales.data(), moves->scales.size() * sizeof(float));
  const CopyJob job{moves->host->address(), moves->tables.address(), end};
  KV_RETURN_IF_ERROR(rig.stream->Copy({&job, 1}, CopyOrder::kStream));
  KV_RETURN_IF_ERROR(Finish(*rig.stream));
  absl::StatusOr<Launch> launch =
      family == KernelFamily::kGather    ? PlanGather(moves->view, moves->layout, move)
      : family == KernelFamily::kScatter ? PlanScatter(moves->view, moves->layout, move)
                                         : PlanPack(family, moves->view, moves->layout, request);
  KV_RETURN_IF_ERROR(launch.status());
  KV_ASSIGN_OR_RETURN(const double seconds,
                      SecondsOf(rig, [&] { return rig.stream->Run(*launch); }));
  const auto raw = static_cast<double>(moves->pages.bytes());
  const double packed = fp8 || int4
                            ? static_cast<double>(PackedBlockBytes(tensors, moves->layout)) *
                                  static_cast<double>(moves->at.size())
                            : raw;
  Say(report, rig, {{"row", name}, {"pages", nhd ? "NHD" : "HND"}, {"bytes", raw}}, raw + packed,
      seconds);
  return absl::OkStatus();
}

absl::Status MeasureMoves(const Plan& plan, const Rig& rig, const Report& report) {
  constexpr std::pair<KernelFamily, const char*> kMoves[] = {
      {KernelFamily::kGather, "gather"},           {KernelFamily::kScatter, "scatter"},
      {KernelFamily::kGatherFp8, "gather, fp8"},   {KernelFamily::kScatterFp8, "scatter, fp8"},
      {KernelFamily::kGatherInt4, "gather, int4"}, {KernelFamily::kScatterInt4, "scatter, int4"}};
  for (const bool nhd : {false, true}) {
    KV_ASSIGN_OR_RETURN(const std::unique_ptr<Moves> moves, MakeMoves(plan, rig, nhd));
    for (const auto& [family, name] : kMoves)
      KV_RETURN_IF_ERROR(MeasureMove(rig, moves.get(), family, name, nhd, report));
  }
  return absl::OkStatus();
}

absl::Status MeasureAttention(const Plan& plan, const Rig& rig, const Report& report) {
  const std::vector<uint32_t> batches =
      plan.tiny ? std::vector<uint32_t>{1, 2} : std::vector<uint32_t>{1, 16, 64};
  const std::vector<uint32_t> contexts =
      plan.tiny ? std::vector<uint32_t>{32, 64} : std::vector<uint32_t>{2048, 8192, 32768};
  for (const uint32_t batch : batches) {
    for (const uint32_t tokens : contexts) {
      const Json row = {{"row", "attention"}, {"sequences", batch}, {"tokens", tokens}};
      const auto loop = AttentionLoop::Create(rig.device, batch, tokens, plan.tiny);
      if (absl::IsResourceExhausted(loop.status())) {  // a small device
        Json left_out = row;
        left_out["why_not"] = std::string(loop.status().message());
        report(left_out);
        continue;
      }
      KV_RETURN_IF_ERROR(loop.status());
      KV_ASSIGN_OR_RETURN(const double seconds,
                          SecondsOf(rig, [&] { return (*loop)->Run(*rig.stream); }));
      Say(report, rig, row, static_cast<double>((*loop)->kv_bytes()), seconds);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunMemory(const Plan& plan, const Report& report) {
  Rig rig;
  rig.times = plan.tiny ? 1 : 20;
  rig.rounds = Rounds(plan);
  KV_ASSIGN_OR_RETURN(rig.device, Open(plan));
  KV_ASSIGN_OR_RETURN(rig.stream, rig.device->NewStream());
  KV_RETURN_IF_ERROR(Ceiling(plan, report, &rig));
  KV_RETURN_IF_ERROR(MeasureMoves(plan, rig, report));
  return MeasureAttention(plan, rig, report);
}

}  // namespace kvarve::gpu_bench
