// A kvarved of a few lines for tests of the client alone: one chunk, no eviction, and a hook that
// sees every packet first, so that a test can hang, lie, answer late or hang up. It gives clients a
// mailbox when KVARVE_TEST_MAILBOX is set: tests run both ways (kv_tests_by_mailbox).
//
// THREADS: any; it serves on one thread of its own.
#ifndef KVARVE_CLIENT_CPP_FAKE_DAEMON_TESTING_H_
#define KVARVE_CLIENT_CPP_FAKE_DAEMON_TESTING_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/local/mailbox.h"
#include "client/local/messages.h"
#include "storage/base/unique_fd.h"

namespace kvarve {

// A memfd of `bytes`, sealed against shrinking when `sealed`.
UniqueFd MakeMemory(uint64_t bytes, bool sealed = true);

class FakeDaemon {
 public:
  static constexpr uint64_t kBlockBytes = 4096;
  static constexpr uint64_t kChunkBytes = 4 << 20;

  struct Peer {
    UniqueFd socket;
    uint64_t session = 0;
    std::byte* staging = nullptr;
    uint64_t staging_bytes = 0;
    std::vector<NamespaceDigest> namespaces;  // by handle - first_handle
    std::unique_ptr<local::Mailbox> mailbox;
    uint64_t call = 0;     // request that was taken out of the mailbox and has no answer yet
    uint32_t packets = 0;  // sent beside a mailbox
    bool by_socket = false;
    ~Peer();
  };
  // Runs on the serving thread with the lock held; true: handled, nothing more is done.
  using Hook = std::function<bool(Peer&, const local::Header&, std::span<const uint8_t> packet)>;

  struct Options {
    uint64_t incarnation = 1;
    uint32_t first_handle = 0;
    uint64_t max_staging_bytes = 1 << 20;
    bool announce = true;  // chunks after WELCOME; else at SYNC only
    bool seal = true;
    bool answers_by_socket = false;  // also calls of the mailbox
    bool over_cap = false;           // ACQUIRE answers "over the lease cap"
    std::function<void(local::Welcome&)> edit_welcome;
  };
  FakeDaemon(const std::string& path, Options options);
  ~FakeDaemon();  // hangs up and removes the socket

  void SetHook(Hook hook);
  // Ends all connections; goes on listening.
  void HangUp();
  void DropChunk();  // sends POOL_DROP to all
  void FlipStoredByte(const BlockKey& key);
  void SetMaxStaging(uint64_t bytes);  // of HELLOs from now on

  // To the mailbox if it answers the call from there, else to the socket.
  static void Reply(Peer& peer, const std::string& message);
  // Answers as if there were no hook.
  void Serve(Peer& peer, const local::Header& header, std::span<const uint8_t> packet);

  struct Seen {
    std::map<local::Type, int> packets;
    std::vector<uint64_t> released;
    std::vector<std::pair<uint64_t, std::string>> byes;  // session named (0: its own), token
    std::vector<uint64_t> pool_dropped;
    int connections = 0;  // now
    std::string engine_id;
    std::map<std::string, int> hellos;  // by engine_id
  };
  Seen seen();
  // Waits until `done` holds (about a minute at most); false: never.
  bool WaitFor(const std::function<bool(const Seen&)>& done);
  static std::string TokenOf(uint64_t session);
  uint64_t chunk_id() const { return chunk_id_; }

 private:
  void Loop();
  void Accept();
  static void ReplyBySocket(Peer& peer, const std::string& message);
  bool ReadOne(Peer& peer);
  void ReadMailbox(Peer& peer);
  void TakeIn(Peer& peer, std::span<const uint8_t> packet, bool by_mailbox);
  void Hello(Peer& peer, const local::Header& header, std::span<const uint8_t> packet);
  void Announce(Peer& peer);
  size_t Found(const Peer& peer, const local::KeysView& view) const;
  void Put(Peer& peer, uint64_t request, const local::KeysView& view);
  void Acquire(Peer& peer, uint64_t request, const local::KeysView& view);
  void Read(Peer& peer, uint64_t request, const local::KeysView& view);

  const std::string path_;
  Options options_;
  const uint64_t chunk_id_;
  UniqueFd listener_, wake_, chunk_fd_;
  std::byte* chunk_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  Hook hook_;
  Seen seen_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::map<std::string, std::pair<uint64_t, uint64_t>>
      blocks_;  // namespace and key -> offset, checksum
  uint64_t used_ = 0, next_lease_ = 100, next_session_ = 1;
  bool stopping_ = false;
  std::thread thread_;
};

// The namespace that these tests put to: opaque blocks of kBlockBytes.
NamespaceDescriptor TestDescriptor(const std::string& model, uint32_t key_bytes = 32);
// Key number `i` of a chain, and the bytes of its block.
BlockKey TestKey(uint64_t i, uint32_t key_bytes = 32);
std::vector<BlockKey> TestKeys(uint64_t first, size_t count, uint32_t key_bytes = 32);
std::vector<std::byte> TestBlock(uint64_t i, uint64_t bytes = FakeDaemon::kBlockBytes);

}  // namespace kvarve

#endif  // KVARVE_CLIENT_CPP_FAKE_DAEMON_TESTING_H_
