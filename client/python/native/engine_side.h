// A worker's data path in one object, without Python in it: the engine's pages, loader threads, the
// saver, and the connections that they use.
//
// THREADS: one at a time.  BLOCKS: WaitReady(), Results() and Close() as long as they say; Save()
// copies.
#ifndef KVARVE_CLIENT_PYTHON_NATIVE_ENGINE_SIDE_H_
#define KVARVE_CLIENT_PYTHON_NATIVE_ENGINE_SIDE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/cpp/engine/block_loader.h"
#include "client/cpp/engine/block_saver.h"
#include "client/cpp/engine/host_path.h"
#include "client/python/native/fault_ports.h"
#include "gpu/device/device.h"
#include "gpu/transfer/transfer.h"

namespace kvarve::python {

// One layer's tensor [pages, heads, tokens, K and V] as the engine's framework describes it;
// addresses and strides in bytes.
struct LayerTensor {
  uint64_t address = 0;
  uint64_t storage = 0;
  uint64_t storage_bytes = 0;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> strides{};
};

struct LoadEnd {
  std::string request;
  std::string error;  // empty: all blocks are in their pages
  int64_t nanos = 0;
};

struct EngineCounts {  // since the last TakeCounts()
  uint64_t load_blocks = 0, load_bytes = 0;
  uint64_t save_blocks = 0, save_bytes = 0;
  uint64_t save_dropped_blocks = 0, save_failed_blocks = 0;
  std::array<uint64_t, kHostPaths> load_paths{};  // blocks, by how they came to the device
  // Of a CUDA device.
  std::array<uint64_t, kMoveMethods> moves{};
  uint64_t moves_without_room = 0, registration_failures = 0;
};

class EngineSide {
 public:
  struct Options {
    ClientOptions client;  // staging_bytes is for saves; loads have a connection of their own
    NamespaceDescriptor descriptor;
    std::vector<LayerTensor> layers;  // in the order of the descriptor's layers
    uint64_t pages = 0;               // of the engine; each may be several of the tensors'
    int threads = 2;
    bool verify = true;
    // Where the tensors lie: "cpu", or "cuda:UUID" (gpu/device/open_device.h). Addresses are that
    // device's. For CUDA: call it before the engine's warm-up. It waits for a daemon that is there,
    // and until the memory to be registered is; from then on nothing is until the first Load, Save
    // or Results, because the engine may be capturing graphs.
    std::string device = "cpu";
    uint64_t load_staging_bytes = 256ull << 20;  // CUDA: for blocks that it cannot read in place
  };
  // InvalidArgument: tensors that do not hold what the descriptor says, or reach outside their
  // storage. OpenDevice's errors.
  static absl::StatusOr<std::unique_ptr<EngineSide>> Create(const Options& options);

  ~EngineSide() { WarmUpIsOver(); }

  // Until both connections are up; DeadlineExceeded. Without them loads fail and saves find no
  // staging.
  absl::Status WaitReady(int64_t timeout_nanos);

  // Another namespace from now on; what was gathered and not yet sent is dropped. When it cannot be
  // opened, loads and saves are FailedPrecondition until another can: nothing goes into the one
  // before.
  void UseSalt(const std::string& client_salt);

  // Starts a load: tokens [first_token, end_token) of the blocks of `keys`, into `pages` that hold
  // just these. The load's end comes out of Results() once; an error here means that it did not
  // start.
  absl::Status Load(const std::string& request, std::vector<BlockKey> keys, GrantSet grants,
                    const std::vector<int64_t>& pages, uint64_t first_token, uint64_t end_token,
                    EngineStream engine = 0);
  // Loads that ended. With `wait_nanos`, waits for the end of one or of a save when there is none
  // yet.
  std::vector<LoadEnd> Results(int64_t wait_nanos);
  // Gathers whole blocks from `pages` now, puts them later. How many found staging.
  absl::StatusOr<size_t> Save(std::vector<BlockKey> keys, std::optional<BlockKey> parent,
                              uint32_t first_depth, const std::vector<int64_t>& pages,
                              uint64_t access, EngineStream engine = 0);
  // "host", "arena", "staging" or "writable" (gpu/transfer/host_registry.h).
  std::string_view host_path() const;
  size_t pending_saves() const { return saver_->pending_blocks(); }
  EngineCounts TakeCounts();
  FaultPlan& faults() { return *faults_; }
  // Waits for pending saves up to `wait_nanos`; ends everything.
  void Close(int64_t wait_nanos);

 private:
  explicit EngineSide(const Options& options) : descriptor_(options.descriptor) {}
  absl::Status OpenTransfer(const Options& options, KvView view, const BlockLayout& layout);
  absl::Status OpenClients(const Options& options);
  void GetReadyForWarmUp();
  void WarmUpIsOver();
  void CountMoves();
  std::vector<int64_t> TensorPages(const std::vector<int64_t>& pages,
                                   uint64_t skipped_tokens) const;
  void CountSaves();
  absl::Status OpenSpaces();

  NamespaceDescriptor descriptor_;
  uint64_t split_ = 1;        // the tensors' pages a page of the engine
  uint64_t page_tokens_ = 0;  // of a tensor's page
  uint64_t pages_ = 0;        // of the engine
  // Outlive the clients, whose memory they know, and these outlive what uses them.
  std::shared_ptr<ComputeDevice> device_;
  std::shared_ptr<HostRegistry> registry_;
  std::shared_ptr<DeviceMemoryObserver> observer_;  // null on the CPU
  bool is_warming_up_ = false;
  std::shared_ptr<Transfer> transfer_;
  const std::shared_ptr<FaultPlan> faults_ = std::make_shared<FaultPlan>();
  std::unique_ptr<Client> load_client_, save_client_;
  ClientNamespace load_space_ = 0, save_space_ = 0;
  absl::Status spaces_ = absl::OkStatus();  // of opening them
  std::unique_ptr<BlockLoader> loader_;
  std::unique_ptr<BlockSaver> saver_;
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::string> requests_;  // of loads under way
  std::unordered_map<uint64_t, size_t> saves_;          // under way: blocks taken
  int64_t complained_nanos_ = 0;                        // when a failed save was logged last
  EngineCounts counts_;
  TransferStats moves_told_;  // as they stood at the last TakeCounts()
  uint64_t failures_told_ = 0;
};

}  // namespace kvarve::python

#endif  // KVARVE_CLIENT_PYTHON_NATIVE_ENGINE_SIDE_H_
