// The processes of a synthetic engine, and others that treat a daemon badly. Each is a role for
// spawned.h; the first argument is the daemon's socket. Blocks' bytes follow from their keys
// (storage/testing/block_generator.h).
#ifndef KVARVE_TESTS_INTEGRATION_ENGINE_ROLES_H_
#define KVARVE_TESTS_INTEGRATION_ENGINE_ROLES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "tests/integration/spawned.h"

namespace kvarve::testing {

inline constexpr uint64_t kEngineBlockBytes = 16384;
inline constexpr size_t kEngineChains = 40;
inline constexpr size_t kChainBlocks = 12;
inline constexpr uint64_t kEngineNs = 7;  // the generator's number
inline constexpr int64_t kPatienceNanos = 60'000'000'000;

NamespaceDescriptor EngineDescriptor();

// A client that is ready, with the engine's namespace open; null: not in time.
struct EngineClient {
  std::unique_ptr<Client> client;
  ClientNamespace ns = 0;
};
EngineClient JoinEngine(const std::string& socket, const std::string& engine_id,
                        uint64_t staging_bytes);
// The outcomes of a put of `keys` with their right bytes.
absl::StatusOr<std::vector<PutOutcome>> PutRight(Client& client, ClientNamespace ns,
                                                 std::span<const BlockKey> keys);

// SOCKET ENGINE SEED: until the test is gone, looks a random chain up with a hold, leases it, hands
// the grants to the worker, and releases most of them. Says "turn" after each.
int SchedulerRole(const Stage& stage);
// SOCKET ENGINE SEED: maps and verifies what the scheduler hands over, and puts random chains
// meanwhile. Says "turn" after each, "wrong" once if a block is not what its key says.
int WorkerRole(const Stage& stage);
// SOCKET: connects, leases and closes without BYE, again and again, until it is refused; then says
// how often.
int LooperRole(const Stage& stage);
// SOCKET: leases, forks a child that lives until the peer socket closes, says "ready", and waits.
int ForkerRole(const Stage& stage);
// SOCKET [TRUST]: a daemon; TRUST, of its arena, is read_only (also without) or writable.
int DaemonRole(const Stage& stage);

}  // namespace kvarve::testing

#endif  // KVARVE_TESTS_INTEGRATION_ENGINE_ROLES_H_
