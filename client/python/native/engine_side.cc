#include "client/python/native/engine_side.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "gpu/device/open_device.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/block/layout.h"

namespace kvarve::python {
namespace {

constexpr int64_t kComplaintNanos = 60'000'000'000;  // between two logs of failed saves
// An engine's start waits so long for a daemon, and for the registration of what it shows.
constexpr int64_t kDaemonPatienceNanos = 2'000'000'000;
constexpr int64_t kRegistrationPatienceNanos = 30'000'000'000;

absl::StatusOr<PagedTensor> TensorAt(const LayerTensor& layer, uint64_t offset) {
  const uint64_t begin = layer.address + offset, end = layer.storage + layer.storage_bytes;
  if (layer.address < layer.storage || begin > end) {
    return absl::InvalidArgumentError("a layer that lies outside its storage");
  }
  PagedTensor tensor;
  tensor.base = reinterpret_cast<std::byte*>(begin);
  tensor.bytes = static_cast<int64_t>(end - begin);
  tensor.page_stride = layer.strides[0];
  tensor.head_stride = layer.strides[1];
  tensor.token_stride = layer.strides[2];
  return tensor;
}

// K and V lie one after the other in the tensor's last dimension.
absl::StatusOr<KvView> ViewOf(const std::vector<LayerTensor>& layers, const BlockLayout& layout) {
  if (layers.empty()) return absl::InvalidArgumentError("no layers");
  KvView view;
  const std::array<int64_t, 4>& shape = layers.front().shape;
  view.pages = shape[0];
  view.page_tokens = static_cast<uint32_t>(shape[2]);
  view.kv_heads = static_cast<uint32_t>(shape[1]);
  view.k_dim = layout.k_dim;
  view.v_dim = layout.v_dim;
  view.element_bytes = layout.element_bytes;
  for (const LayerTensor& layer : layers) {
    if (layer.shape != shape || layer.shape[3] != int64_t{layout.k_dim} + layout.v_dim ||
        layer.strides[3] != layout.element_bytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a layer of shape [%d, %d, %d, %d] and last stride %d, not [pages, "
                          "heads, tokens, %d] and %d",
                          layer.shape[0], layer.shape[1], layer.shape[2], layer.shape[3],
                          layer.strides[3], layout.k_dim + layout.v_dim, layout.element_bytes));
    }
    LayerView rows;
    KV_ASSIGN_OR_RETURN(rows.k, TensorAt(layer, 0));
    if (layout.v_dim > 0) {
      KV_ASSIGN_OR_RETURN(rows.v, TensorAt(layer, layout.KRowBytes()));
    }
    view.layers.push_back(rows);
  }
  return view;
}

std::string Text(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineSide>> EngineSide::Create(const Options& options) {
  KV_RETURN_IF_ERROR(ValidateDescriptor(options.descriptor));
  const BlockLayout layout = BlockLayout::Of(options.descriptor);
  std::unique_ptr<EngineSide> side(new EngineSide(options));
  KV_ASSIGN_OR_RETURN(KvView view, ViewOf(options.layers, layout));
  if (options.pages == 0 || static_cast<uint64_t>(view.pages) % options.pages != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensors of %d pages for an engine of %d", view.pages, options.pages));
  }
  side->pages_ = options.pages;
  side->split_ = static_cast<uint64_t>(view.pages) / options.pages;
  side->page_tokens_ = view.page_tokens;
  KV_RETURN_IF_ERROR(side->OpenTransfer(options, std::move(view), layout));
  KV_RETURN_IF_ERROR(side->OpenClients(options));
  BlockLoader::Options loading;
  loading.threads = options.threads;
  loading.verify = options.verify;
  KV_ASSIGN_OR_RETURN(
      side->loader_,
      BlockLoader::Create(
          WithFaults(SourceOf(side->load_client_.get(), side->observer_), side->faults_), loading));
  side->saver_ = std::make_unique<BlockSaver>(
      WithFaults(SinkOf(side->save_client_.get()), side->faults_, options.descriptor.block_bytes));
  KV_RETURN_IF_ERROR(side->OpenSpaces());
  if (!side->device_->info().is_cpu) side->GetReadyForWarmUp();
  return side;
}

absl::Status EngineSide::OpenTransfer(const Options& options, KvView view,
                                      const BlockLayout& layout) {
  KV_ASSIGN_OR_RETURN(device_, OpenDevice(options.device));
  registry_ = std::make_shared<HostRegistry>(device_);
  if (!device_->info().is_cpu) {
    observer_ = std::make_shared<DeviceMemoryObserver>(device_->info(), registry_);
  }
  KV_ASSIGN_OR_RETURN(transfer_, Transfer::Create(device_, registry_, std::move(view), layout, {}));
  return absl::OkStatus();
}

absl::Status EngineSide::OpenClients(const Options& options) {
  ClientOptions saving = options.client;
  saving.memory = observer_;
  KV_ASSIGN_OR_RETURN(save_client_, Client::Create(saving));
  ClientOptions loading = saving;
  loading.staging_bytes = device_->info().is_cpu ? 0 : options.load_staging_bytes;
  KV_ASSIGN_OR_RETURN(load_client_, Client::Create(loading));
  return absl::OkStatus();
}

// What is registered now need not be while the first requests wait; without a daemon it will be.
void EngineSide::GetReadyForWarmUp() {
  if (WaitReady(kDaemonPatienceNanos).ok()) registry_->WaitIdle(kRegistrationPatienceNanos);
  is_warming_up_ = true;
  registry_->SetQuiet(true);
}

void EngineSide::WarmUpIsOver() {
  if (std::exchange(is_warming_up_, false)) registry_->SetQuiet(false);
}

std::string_view EngineSide::host_path() const {
  return HostPathName(observer_ == nullptr ? HostPath::kHost : observer_->path());
}

absl::Status EngineSide::WaitReady(int64_t timeout_nanos) {
  KV_RETURN_IF_ERROR(save_client_->WaitReady(timeout_nanos));
  return load_client_->WaitReady(timeout_nanos);
}

absl::Status EngineSide::OpenSpaces() {
  KV_ASSIGN_OR_RETURN(load_space_, load_client_->OpenNamespace(descriptor_));
  KV_ASSIGN_OR_RETURN(save_space_, save_client_->OpenNamespace(descriptor_));
  return absl::OkStatus();
}

void EngineSide::UseSalt(const std::string& client_salt) {
  saver_->CancelQueued();
  descriptor_.client_salt = client_salt;
  spaces_ = OpenSpaces();
  if (!spaces_.ok())
    spaces_ = absl::FailedPreconditionError("the namespace could not be opened: " + Text(spaces_));
}

std::vector<int64_t> EngineSide::TensorPages(const std::vector<int64_t>& pages,
                                             uint64_t skipped_tokens) const {
  std::vector<int64_t> ids(skipped_tokens / page_tokens_, -1);
  ids.reserve(ids.size() + pages.size() * split_);
  for (const int64_t page : pages) {
    const bool valid = page >= 0 && static_cast<uint64_t>(page) < pages_;
    for (uint64_t i = 0; i < split_; ++i) {
      ids.push_back(valid ? page * static_cast<int64_t>(split_) + static_cast<int64_t>(i) : -1);
    }
  }
  return ids;
}

absl::Status EngineSide::Load(const std::string& request, std::vector<BlockKey> keys,
                              GrantSet grants, const std::vector<int64_t>& pages,
                              uint64_t first_token, uint64_t end_token, EngineStream engine) {
  WarmUpIsOver();
  KV_RETURN_IF_ERROR(spaces_);
  LoadJob job;
  job.engine = engine;
  job.id = next_id_;
  job.ns = load_space_;
  job.keys = std::move(keys);
  job.grants = std::move(grants);
  job.pages = transfer_;
  job.page_ids = TensorPages(pages, first_token);
  job.page_ids.resize(std::max(job.page_ids.size(), job.keys.size() * transfer_->pages_per_block()),
                      -1);
  job.first_token = first_token;
  job.end_token = end_token;
  KV_RETURN_IF_ERROR(loader_->Submit(std::move(job)));
  requests_.emplace(next_id_++, request);
  return absl::OkStatus();
}

std::vector<LoadEnd> EngineSide::Results(int64_t wait_nanos) {
  std::vector<LoadResult> results = loader_->Poll();
  if (results.empty() && wait_nanos > 0) {
    pollfd events[] = {{loader_->event_fd(), POLLIN, 0}, {saver_->event_fd(), POLLIN, 0}};
    const timespec wait = {wait_nanos / 1'000'000'000, wait_nanos % 1'000'000'000};
    ::ppoll(events, std::size(events), &wait, nullptr);
    results = loader_->Poll();
  }
  CountSaves();
  std::vector<LoadEnd> ends;
  for (const LoadResult& result : results) {
    const auto request = requests_.find(result.id);
    if (result.status.ok()) {
      counts_.load_blocks += result.blocks;
      counts_.load_bytes += result.bytes;
      for (size_t i = 0; i < kHostPaths; ++i) counts_.load_paths[i] += result.by_path[i];
    }
    ends.push_back({request->second,
                    result.status.ok() ? std::string() : "load: " + Text(result.status),
                    result.nanos});
    requests_.erase(request);
  }
  return ends;
}

absl::StatusOr<size_t> EngineSide::Save(std::vector<BlockKey> keys, std::optional<BlockKey> parent,
                                        uint32_t first_depth, const std::vector<int64_t>& pages,
                                        uint64_t access, EngineStream engine) {
  WarmUpIsOver();
  KV_RETURN_IF_ERROR(spaces_);
  SaveJob job;
  job.engine = engine;
  job.id = next_id_++;
  job.ns = save_space_;
  job.parent = parent;
  job.first_depth = first_depth;
  job.keys = std::move(keys);
  job.request_id = access;
  job.pages = transfer_;
  job.page_ids = TensorPages(pages, 0);
  KV_ASSIGN_OR_RETURN(const SaveAnswer answer, saver_->Save(job));
  counts_.save_dropped_blocks += job.keys.size() - answer.blocks;
  if (answer.blocks > 0) saves_.emplace(job.id, answer.blocks);
  return answer.blocks;
}

void EngineSide::CountSaves() {
  for (const SaveResult& result : saver_->Poll()) {
    uint64_t kept = 0;
    for (const PutOutcome outcome : result.outcomes) {
      kept += outcome == PutOutcome::kStored || outcome == PutOutcome::kExists;
    }
    const auto save = saves_.find(result.id);
    counts_.save_blocks += kept;
    counts_.save_bytes += kept * descriptor_.block_bytes;
    counts_.save_failed_blocks += save->second - kept;
    saves_.erase(save);
    const int64_t now = SystemClock::Get()->NowNanos();
    if (!result.status.ok() && !absl::IsCancelled(result.status) &&
        (complained_nanos_ == 0 || now - complained_nanos_ > kComplaintNanos)) {
      complained_nanos_ = now;
      KvLog(LogLevel::kWarning, "kvarve: a save failed", {{"why", Text(result.status)}});
    }
  }
}

void EngineSide::CountMoves() {
  if (device_->info().is_cpu) return;
  const TransferStats now = transfer_->stats();
  for (size_t i = 0; i < kMoveMethods; ++i)
    counts_.moves[i] += now.by_method[i] - moves_told_.by_method[i];
  counts_.moves_without_room += now.exhausted - moves_told_.exhausted;
  moves_told_ = now;
  const uint64_t failed = registry_->stats().failed;
  counts_.registration_failures += failed - std::exchange(failures_told_, failed);
}

EngineCounts EngineSide::TakeCounts() {
  CountSaves();
  CountMoves();
  return std::exchange(counts_, {});
}

void EngineSide::Close(int64_t wait_nanos) {
  WarmUpIsOver();  // what is unmapped is unregistered first
  loader_->Stop();
  saver_->Drain(wait_nanos);
  saver_->Stop();
}

}  // namespace kvarve::python
