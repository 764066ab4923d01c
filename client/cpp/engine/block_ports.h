// What the loader and the saver ask of a Client, and nothing more: a test, or an injected fault,
// stands between. THREADS: any.  BLOCKS: as the Client's calls do.
#ifndef KVARVE_CLIENT_CPP_ENGINE_BLOCK_PORTS_H_
#define KVARVE_CLIENT_CPP_ENGINE_BLOCK_PORTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/cpp/engine/host_path.h"

namespace kvarve {

struct OpenBlocks {
  uint64_t block_bytes = 0;
  std::vector<const std::byte*> blocks;
  std::vector<uint64_t> checksums;
  std::shared_ptr<void> hold;  // keeps the memory; as short as can be
  bool is_cut = false;         // fewer than asked for because of room: ask again from there on
  // How they come to the device. kWritable: others may write the memory, and what was copied is
  // checked after the copy.
  HostPath path = HostPath::kHost;
};

class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // What another process leased (`grants`), or else a lease on the leading blocks of `keys` that
  // are there. ResourceExhausted: no room now; it will be there when other blocks' holds end.
  virtual absl::StatusOr<OpenBlocks> Open(ClientNamespace ns, std::span<const BlockKey> keys,
                                          const std::optional<GrantSet>& grants,
                                          uint64_t request_id) = 0;
  virtual bool Verify(ClientNamespace ns, const BlockKey& key, const std::byte* block,
                      uint64_t checksum) = 0;
};

struct StagedBytes {
  std::byte* data = nullptr;
  std::shared_ptr<void> hold;  // gives the staging back when it ends
};

class BlockSink {
 public:
  virtual ~BlockSink() = default;
  // Never waits. ResourceExhausted: none now.
  virtual absl::StatusOr<StagedBytes> Stage(size_t bytes) = 0;
  virtual absl::StatusOr<std::vector<PutOutcome>> Put(ClientNamespace ns, const PutChain& chain,
                                                      StagedBytes staged) = 0;
};

// Over a Client, which must outlive them. A saver's Client should be its own: its puts take long.
// `memory`: the Client's observer, for a device that can only read what is registered; blocks that
// are not registered in place come through staging. Null: the CPU.
std::unique_ptr<BlockSource> SourceOf(Client* client,
                                      std::shared_ptr<DeviceMemoryObserver> memory = nullptr);
std::unique_ptr<BlockSink> SinkOf(Client* client);

}  // namespace kvarve

#endif  // KVARVE_CLIENT_CPP_ENGINE_BLOCK_PORTS_H_
