// Faults between the loader or saver and its Client, for tests of an engine: each is planned for
// one block, by key, and happens once. Without a plan these ports only pass on. THREADS: any.
// BLOCKS: as the port behind; a planned delay waits inside Open().
#ifndef KVARVE_CLIENT_PYTHON_NATIVE_FAULT_PORTS_H_
#define KVARVE_CLIENT_PYTHON_NATIVE_FAULT_PORTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/engine/block_ports.h"
#include "storage/base/mutex.h"

namespace kvarve::python {

class FaultPlan {
 public:
  static constexpr size_t kMaxFaults = 1024;  // planned and not yet met

  // fail_load: the block does not verify. delay_load: the load that begins with the block starts
  // `nanos` later. flip_save: one bit of the block is another one when it is put. InvalidArgument:
  // no such fault.
  absl::Status Add(const std::string& kind, const BlockKey& key, int64_t nanos);
  // The plan for this block, and no longer planned; a delay's length, else 0.
  std::optional<int64_t> Take(const char* kind, const BlockKey& key);

 private:
  struct Fault {
    std::string kind;
    BlockKey key;
    int64_t nanos = 0;
  };
  Mutex mutex_;
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mutex_);
};

std::unique_ptr<BlockSource> WithFaults(std::unique_ptr<BlockSource> source,
                                        std::shared_ptr<FaultPlan> plan);
std::unique_ptr<BlockSink> WithFaults(std::unique_ptr<BlockSink> sink,
                                      std::shared_ptr<FaultPlan> plan, uint64_t block_bytes);

}  // namespace kvarve::python

#endif  // KVARVE_CLIENT_PYTHON_NATIVE_FAULT_PORTS_H_
