#include "tests/integration/engine_roles.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <cstring>
#include <random>

#include "services/local/local_server.h"
#include "storage/base/log.h"
#include "storage/base/units.h"
#include "storage/testing/block_generator.h"

namespace kvarve::testing {
namespace {

constexpr int64_t kHoldNanos = 5'000'000'000;
constexpr size_t kMaxLoops = 1000;

// Grants on their way from scheduler to worker: this, then the items.
struct Handover {
  uint64_t chain = 0, incarnation = 0, lease = 0, block_bytes = 0, items = 0;
};

std::string Pack(uint64_t chain, const GrantSet& grants) {
  const Handover head = {chain, grants.incarnation, grants.lease, grants.block_bytes,
                         grants.items.size()};
  std::string packed(reinterpret_cast<const char*>(&head), sizeof(head));
  packed.append(reinterpret_cast<const char*>(grants.items.data()),
                grants.items.size() * sizeof(local::GrantItem));
  return packed;
}

bool Unpack(std::string_view packed, uint64_t* chain, GrantSet* grants) {
  Handover head;
  if (packed.size() < sizeof(head)) return false;
  std::memcpy(&head, packed.data(), sizeof(head));
  packed.remove_prefix(sizeof(head));
  if (head.items == 0 || packed.size() != head.items * sizeof(local::GrantItem)) return false;
  *chain = head.chain;
  *grants = {.incarnation = head.incarnation, .lease = head.lease, .block_bytes = head.block_bytes};
  grants->items.resize(head.items);
  std::memcpy(grants->items.data(), packed.data(), packed.size());
  return true;
}

// A packet from the peer within `millis`; "" when there is none, `gone` when there will be none.
std::string FromPeer(const Stage& stage, int millis, bool* gone) {
  pollfd poll{stage.peer, POLLIN, 0};
  if (::poll(&poll, 1, millis) <= 0) return "";
  char buffer[4096];
  const ssize_t got = ::recv(stage.peer, buffer, sizeof(buffer), 0);
  *gone = got <= 0;
  return got > 0 ? std::string(buffer, static_cast<size_t>(got)) : std::string();
}

bool VerifyHandover(const EngineClient& engine, std::string_view packed) {
  uint64_t chain = 0;
  GrantSet grants;
  if (!Unpack(packed, &chain, &grants)) return false;
  const absl::StatusOr<View> view = engine.client->Map(grants);
  if (!view.ok()) return true;  // a failed load, not a wrong one
  const std::vector<BlockKey> keys = KeyChain(chain, kChainBlocks);
  for (size_t i = 0; i < view->size(); ++i) {
    if (!IsBlock(kEngineNs, keys[i], {view->block(i), kEngineBlockBytes})) return false;
    if (!engine.client->Verify(engine.ns, keys[i], view->block(i), view->checksum(i))) return false;
  }
  return true;
}

}  // namespace

NamespaceDescriptor EngineDescriptor() {
  NamespaceDescriptor descriptor;
  descriptor.model = "synthetic";
  descriptor.model_digest = "sha256:synthetic";
  descriptor.element_type = ElementType::kOpaque;
  descriptor.hash_version = "test";
  descriptor.layer_count = descriptor.layer_total = 1;
  descriptor.kv_head_count = descriptor.kv_head_total = 1;
  descriptor.block_tokens = 16;
  descriptor.block_bytes = kEngineBlockBytes;
  return descriptor;
}

EngineClient JoinEngine(const std::string& socket, const std::string& engine_id,
                        uint64_t staging_bytes) {
  ClientOptions options;
  options.endpoint = "unix://" + socket;
  options.engine_id = engine_id;
  options.staging_bytes = staging_bytes;
  options.timeout_nanos = options.put_timeout_nanos = kPatienceNanos;
  EngineClient engine{.client = Client::Create(options).value()};
  engine.ns = engine.client->OpenNamespace(EngineDescriptor()).value();
  if (!engine.client->WaitReady(kPatienceNanos).ok()) engine.client = nullptr;
  return engine;
}

absl::StatusOr<std::vector<PutOutcome>> PutRight(Client& client, ClientNamespace ns,
                                                 std::span<const BlockKey> keys) {
  std::vector<std::vector<std::byte>> blocks;
  std::vector<const std::byte*> sources;
  for (const BlockKey& key : keys) blocks.push_back(MakeBlock(kEngineNs, key, kEngineBlockBytes));
  for (const auto& block : blocks) sources.push_back(block.data());
  return client.Put(ns, {.keys = keys}, sources);
}

int SchedulerRole(const Stage& stage) {
  const EngineClient engine = JoinEngine(stage.args[0], stage.args[1], 0);
  if (engine.client == nullptr) return 1;
  std::mt19937_64 random(std::stoull(stage.args[2]));
  while (stage.Listening()) {
    const uint64_t chain = random() % kEngineChains;
    const std::vector<BlockKey> keys = KeyChain(chain, kChainBlocks);
    const absl::StatusOr<LookupResult> found = engine.client->Lookup(engine.ns, keys, kHoldNanos);
    const absl::StatusOr<GrantSet> grants = engine.client->AcquireGrants(engine.ns, keys, random());
    if (found.ok() && found->hold != 0) engine.client->Release(found->hold);
    if (grants.ok() && grants->lease != 0) {
      const std::string packed = Pack(chain, *grants);
      [[maybe_unused]] const ssize_t sent =
          ::send(stage.peer, packed.data(), packed.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      bool gone = false;
      FromPeer(stage, 100, &gone);  // the worker is done with them
      if (random() % 5 != 0) engine.client->Release(grants->lease);
    }
    stage.Say("turn");
  }
  return 0;
}

int WorkerRole(const Stage& stage) {
  const EngineClient engine =
      JoinEngine(stage.args[0], stage.args[1], kChainBlocks * kEngineBlockBytes);
  if (engine.client == nullptr) return 1;
  std::mt19937_64 random(std::stoull(stage.args[2]));
  while (stage.Listening()) {
    bool gone = false;
    const std::string packed = FromPeer(stage, 0, &gone);
    if (!packed.empty()) {
      if (!VerifyHandover(engine, packed)) stage.Say("wrong");
      [[maybe_unused]] const ssize_t sent =
          ::send(stage.peer, "ok", 2, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    const std::vector<BlockKey> keys = KeyChain(random() % kEngineChains, kChainBlocks);
    PutRight(*engine.client, engine.ns,
             std::span<const BlockKey>(keys).first(1 + random() % kChainBlocks))
        .IgnoreError();
    stage.Say("turn");
  }
  return 0;
}

int LooperRole(const Stage& stage) {
  const std::vector<BlockKey> keys = KeyChain(0, kChainBlocks);
  size_t rounds = 0;
  while (rounds < kMaxLoops) {
    ClientOptions options;
    options.endpoint = "unix://" + stage.args[0];
    options.engine_id = "looper";
    options.staging_bytes = 4 << 20;
    options.timeout_nanos = kPatienceNanos;
    const std::unique_ptr<Client> client = Client::Create(options).value();
    const ClientNamespace ns = client->OpenNamespace(EngineDescriptor()).value();
    if (!client->WaitReady(500'000'000).ok()) break;
    // Grants that are never released: the client's end says no BYE.
    if (!client->AcquireGrants(ns, keys, 0).ok()) break;
    ++rounds;
  }
  stage.Say(std::to_string(rounds));
  stage.Listen();
  return 0;
}

int ForkerRole(const Stage& stage) {
  const EngineClient engine = JoinEngine(stage.args[0], "forker", 4 << 20);
  if (engine.client == nullptr) return 1;
  const std::vector<BlockKey> keys = KeyChain(0, kChainBlocks);
  if (!engine.client->AcquireGrants(engine.ns, keys, 0).ok()) return 1;
  if (::fork() == 0) {
    char byte;
    [[maybe_unused]] const ssize_t end = ::recv(stage.peer, &byte, 1, 0);
    ::_exit(0);
  }
  stage.Say("ready");
  stage.Listen();
  return 0;
}

int DaemonRole(const Stage& stage) {
  SetLogLevel(LogLevel::kError);
  CacheOptions cache_options;
  cache_options.arena.capacity_bytes = 64 * kMiB;
  cache_options.arena.chunk_bytes = 32 * kMiB;
  cache_options.arena.huge_pages = false;
  cache_options.arena.prefault = false;
  cache_options.arena.hold_dropped = true;
  cache_options.arena.is_writable = stage.args.size() > 1 && stage.args[1] == "writable";
  const std::unique_ptr<Cache> cache = Cache::Create(cache_options).value();
  LocalServerOptions options;
  options.socket_path = stage.args[0];
  const auto server = LocalServer::Start(options, cache.get());
  if (!server.ok()) return 1;
  stage.Say("serving");
  stage.Listen();
  return 0;
}

}  // namespace kvarve::testing
