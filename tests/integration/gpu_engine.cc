#include "tests/integration/gpu_engine.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "gpu/device/cpu_device.h"
#include "gpu/device/cuda_device.h"
#include "gpu/transfer/transfer_testing.h"
#include "storage/base/log.h"
#include "storage/testing/block_generator.h"

namespace kvarve::testing {
namespace {

constexpr int64_t kPages = 64, kPageTokens = 4, kRow = 128, kPatienceNanos = 60'000'000'000;
constexpr int64_t kTensorBytes = kPages * kPageTokens * kRow * kGpuLayout.kv_heads;
constexpr uint64_t kNs = 9;  // the generator's number
constexpr std::byte kModule[1] = {};

NamespaceDescriptor Descriptor() {
  NamespaceDescriptor descriptor;
  descriptor.model = "gpu-toy";
  descriptor.model_digest = "sha256:gpu-toy";
  descriptor.hash_version = "test";
  descriptor.layer_count = descriptor.layer_total = kGpuLayout.layers;
  descriptor.kv_head_count = descriptor.kv_head_total = kGpuLayout.kv_heads;
  descriptor.k_dim = kGpuLayout.k_dim;
  descriptor.v_dim = kGpuLayout.v_dim;
  descriptor.block_tokens = kGpuLayout.tokens;
  descriptor.block_bytes = kGpuLayout.BlockBytes();
  return descriptor;
}

KvView View(uint64_t base) {
  KvView view;
  view.pages = kPages, view.page_tokens = kPageTokens, view.kv_heads = kGpuLayout.kv_heads;
  view.k_dim = kGpuLayout.k_dim, view.v_dim = kGpuLayout.v_dim, view.element_bytes = 2;
  auto tensor = [&](int64_t i) {
    PagedTensor t;
    t.base = reinterpret_cast<std::byte*>(base) + i * kTensorBytes;
    t.bytes = kTensorBytes;
    t.token_stride = kRow;
    t.head_stride = kPageTokens * kRow;
    t.page_stride = view.kv_heads * t.head_stride;
    return t;
  };
  for (uint32_t layer = 0; layer < kGpuLayout.layers; ++layer)
    view.layers.push_back({tensor(2 * layer), tensor(2 * layer + 1)});
  return view;
}

}  // namespace

GpuEngine::GpuEngine(const std::string& socket, const std::string& engine_id,
                     const std::string& path, uint64_t seed)
    : random_(seed) {
  if (path == "host") {
    device_ = NewCpuDevice();
  } else {
    fake::FakeDriver::Options options;
    options.read_only_registration = path == "arena";
    options.seed = seed;
    driver_ = std::make_unique<fake::FakeDriver>(options);
    device_ = OpenCudaDevice(driver_->table(), "", kModule).value();
  }
  pages_ = device_->Allocate(2 * kGpuLayout.layers * kTensorBytes).value();
  registry_ = std::make_shared<HostRegistry>(device_);
  Transfer::Options moving;
  constexpr MoveMethod kMethods[] = {MoveMethod::kCopies, MoveMethod::kKernel, MoveMethod::kStaged};
  moving.method = kMethods[random_() % 3];
  transfer_ =
      Transfer::Create(device_, registry_, View(pages_.address()), kGpuLayout, moving).value();
  by_hand_ = CpuTransfer(View(pages_.address()), kGpuLayout).value();
  ClientOptions options;
  options.endpoint = "unix://" + socket;
  options.engine_id = engine_id;
  options.staging_bytes = 1 << 20;
  options.timeout_nanos = options.put_timeout_nanos = kPatienceNanos;
  options.probe_interval_nanos = 10'000'000;
  if (driver_ != nullptr) {
    observer_ = std::make_shared<DeviceMemoryObserver>(device_->info(), registry_);
    options.memory = observer_;
  }
  save_client_ = Client::Create(options).value();
  if (driver_ == nullptr) options.staging_bytes = 0;
  load_client_ = Client::Create(options).value();
  save_ns_ = save_client_->OpenNamespace(Descriptor()).value();
  load_ns_ = load_client_->OpenNamespace(Descriptor()).value();
  loader_ = BlockLoader::Create(SourceOf(load_client_.get(), observer_), {}).value();
  saver_ = std::make_unique<BlockSaver>(SinkOf(save_client_.get()));
}

GpuEngine::~GpuEngine() {
  loader_.reset();
  saver_.reset();
}

bool GpuEngine::Ready() {
  return save_client_->WaitReady(kPatienceNanos).ok() &&
         load_client_->WaitReady(kPatienceNanos).ok() && registry_->WaitIdle(kPatienceNanos);
}

std::string_view GpuEngine::path() const {
  return HostPathName(observer_ == nullptr ? HostPath::kHost : observer_->path());
}

std::string GpuEngine::Complaints() {
  const std::vector<std::string> all =
      driver_ == nullptr ? std::vector<std::string>() : driver_->diagnostics();
  return all.empty() ? "" : all.front();
}

std::vector<int64_t> GpuEngine::RandomPages() {
  std::vector<int64_t> ids(kPages);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random_);
  ids.resize(2 * kGpuChainBlocks);
  return ids;
}

void GpuEngine::WritePages(const std::vector<BlockKey>& keys, const std::vector<int64_t>& ids) {
  if (driver_ != nullptr)
    driver_->HostWrites(reinterpret_cast<void*>(pages_.address()), pages_.bytes(), "pages");
  for (size_t i = 0; i < keys.size(); ++i) {
    std::vector<std::byte> block = MakeBlock(kNs, keys[i], kGpuLayout.BlockBytes());
    KV_CHECK(MoveNow(*by_hand_, MoveDirection::kScatter, std::span(ids).subspan(2 * i, 2), 0,
                     kGpuLayout.tokens, block)
                 .ok());
  }
}

bool GpuEngine::PagesHold(const std::vector<BlockKey>& keys, const std::vector<int64_t>& ids) {
  if (driver_ != nullptr)
    driver_->HostReads(reinterpret_cast<void*>(pages_.address()), pages_.bytes(), "the engine");
  for (size_t i = 0; i < keys.size(); ++i) {
    std::vector<std::byte> block(kGpuLayout.BlockBytes());
    KV_CHECK(MoveNow(*by_hand_, MoveDirection::kGather, std::span(ids).subspan(2 * i, 2), 0,
                     kGpuLayout.tokens, block)
                 .ok());
    if (!IsBlock(kNs, keys[i], block)) return false;
  }
  return true;
}

// What is queued runs part by part.
void GpuEngine::StepThroughWork() {
  if (!hold_) return;
  const size_t queued = driver_->queued();
  if (queued > 0) on_state_("queued");
  for (int parts = static_cast<int>(random_() % 40); parts > 0; --parts) {
    driver_->Step(1);
    if (random_() % 8 == 0) ::usleep(static_cast<useconds_t>(random_() % 500));
  }
  const size_t left = driver_->queued();
  if (left > 0 && left < queued) on_state_("half");
  driver_->Go();
}

GpuEngine::Answer GpuEngine::Save(uint64_t chain) {
  const std::vector<BlockKey> keys = KeyChain(chain, kGpuChainBlocks);
  const std::vector<int64_t> ids = RandomPages();
  WritePages(keys, ids);
  hold_ = driver_ != nullptr && random_() % 2 == 0;
  if (hold_) driver_->Hold();
  const absl::StatusOr<SaveAnswer> answer = saver_->Save(
      {.id = next_id_++, .ns = save_ns_, .keys = keys, .pages = transfer_, .page_ids = ids});
  StepThroughWork();
  if (!saver_->Drain(kPatienceNanos)) return Answer::kWrong;
  saver_->Poll();
  return answer.ok() && answer->blocks == keys.size() ? Answer::kDone : Answer::kMiss;
}

GpuEngine::Answer GpuEngine::Load(uint64_t chain) {
  const std::vector<BlockKey> keys = KeyChain(chain, kGpuChainBlocks);
  const std::vector<int64_t> ids = RandomPages();
  hold_ = driver_ != nullptr && random_() % 2 == 0;
  if (hold_) driver_->Hold();
  KV_CHECK(
      loader_
          ->Submit(
              {.id = next_id_++, .ns = load_ns_, .keys = keys, .pages = transfer_, .page_ids = ids})
          .ok());
  pollfd ready = {loader_->event_fd(), POLLIN, 0};
  // The first operation is the mark of what the engine has; then come the copies, or the load's
  // end.
  while (hold_ && driver_->queued() < 2 && ::poll(&ready, 1, 0) == 0) ::usleep(20);
  StepThroughWork();
  std::vector<LoadResult> results;
  while (results.empty()) {
    ::poll(&ready, 1, 1000);
    results = loader_->Poll();
  }
  if (!results[0].status.ok())
    return absl::IsDataLoss(results[0].status) ? Answer::kWrong : Answer::kMiss;
  if (!PagesHold(keys, ids)) return Answer::kWrong;
  loaded_ += keys.size();
  return Answer::kDone;
}

GpuEngine::Answer GpuEngine::Turn() {
  const uint64_t chain = random_() % kGpuChains;
  return random_() % 2 == 0 ? Save(chain) : Load(chain);
}

int GpuEngineRole(const Stage& stage) {
  SetLogLevel(LogLevel::kError);
  GpuEngine engine(stage.args[0], stage.args[1], stage.args[2], std::stoull(stage.args[3]));
  if (!engine.Ready()) return 1;
  engine.OnState([&](const std::string& state) {
    stage.Say(state);
    ::usleep(200);  // so that a test that heard it finds it so
  });
  while (stage.Listening()) {
    const bool wrong = engine.Turn() == GpuEngine::Answer::kWrong;
    const std::string complaint = engine.Complaints();
    if (!complaint.empty()) std::fprintf(stderr, "%s\n", complaint.c_str());
    stage.Say(wrong || !complaint.empty() ? "wrong" : "turn");
  }
  return 0;
}

}  // namespace kvarve::testing
