// A client of the data plane that shows every message, for tests: it can also send what no client
// should. Failing to connect or to get an answer in 20 s ends the process: nothing in a test goes
// on without. It takes a mailbox when KVARVE_TEST_MAILBOX is set: tests run both ways
// (kv_tests_by_mailbox). THREADS: one owner.
#ifndef KVARVE_SERVICES_LOCAL_TESTING_RAW_CLIENT_H_
#define KVARVE_SERVICES_LOCAL_TESTING_RAW_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/local/mailbox.h"
#include "client/local/messages.h"
#include "storage/base/unique_fd.h"
#include "storage/block/block_key.h"
#include "storage/block/namespace.h"
#include "storage/testing/opaque_namespace.h"
#include "storage/testing/seeded_random.h"

namespace kvarve::testing {

struct Packet {
  std::vector<uint8_t> bytes;
  std::vector<UniqueFd> fds;
  local::Header header() const;
  local::Type type() const { return static_cast<local::Type>(header().type); }
};

struct GrantReply {
  local::GrantBody body;
  std::vector<local::GrantItem> items;
};

// Bytes that no client should send, in most cases behind a header that fits them.
std::string RandomPacket(SeededRandom* random);

class RawClient {
 public:
  explicit RawClient(const std::string& path);  // connects
  ~RawClient();
  RawClient(RawClient&&) = delete;

  int socket() const { return socket_.get(); }
  void Close() { socket_.reset(); }

  // ---- Packets as they are.
  void Send(std::string_view message);
  // False when the daemon has closed the connection.
  bool TrySend(std::string_view message);
  // nullopt at the end of the connection.
  std::optional<Packet> Receive();
  // True when the connection ends, whatever comes before that.
  bool ReceiveEnd();
  // Sends, by the mailbox where that can be, and gives the answer to the request number that the
  // message carries, taking in POOL_ADD and POOL_DROP on the way; the status of an ERROR;
  // Unavailable at the end of the connection.
  absl::StatusOr<Packet> Call(std::string_view message);
  uint64_t NextRequest() { return ++request_; }

  // ---- Requests.
  absl::StatusOr<local::Welcome> Hello(const local::Hello& hello);
  absl::StatusOr<local::Welcome> Hello(const std::vector<NamespaceDescriptor>& namespaces = {},
                                       uint64_t staging_bytes = 0, std::string engine_id = "");
  absl::StatusOr<local::NamespaceOpenedBody> Open(const NamespaceDescriptor& descriptor);
  absl::StatusOr<local::LookupReplyBody> Lookup(uint32_t ns, std::span<const BlockKey> keys,
                                                uint32_t hold_ms = 0);
  absl::StatusOr<GrantReply> Acquire(uint32_t ns, std::span<const BlockKey> keys);
  void Release(std::span<const uint64_t> leases);  // one-way
  // Blocks of FillBlock(0, key), staged one after the other from offset 0 on.
  absl::StatusOr<std::vector<uint8_t>> PutBlocks(uint32_t ns, uint64_t block_bytes,
                                                 std::span<const BlockKey> keys);
  absl::StatusOr<std::vector<uint8_t>> Put(const local::KeysBody& body,
                                           std::span<const BlockKey> keys,
                                           std::span<const uint64_t> offsets);
  absl::StatusOr<std::vector<uint64_t>> Read(uint32_t ns, std::span<const BlockKey> keys,
                                             std::span<const uint64_t> offsets);
  absl::StatusOr<uint64_t> Touch(uint32_t ns, std::span<const BlockKey> keys, uint64_t request_id);
  absl::StatusOr<uint64_t> Invalidate(uint32_t ns, std::span<const BlockKey> keys = {});
  absl::StatusOr<uint64_t> ReportCorrupt(uint32_t ns, std::span<const BlockKey> keys);
  absl::StatusOr<uint64_t> Sync();
  absl::StatusOr<std::string> Admin(std::string_view json);
  void PoolDropped(uint64_t chunk);  // one-way; unmaps it first
  void Bye(uint64_t session = 0, const uint8_t* token = nullptr);

  // ---- What the daemon gave.
  local::Mailbox* mailbox() const { return mailbox_.get(); }
  int mailbox_fd() const { return mailbox_fd_.get(); }
  std::span<std::byte> staging() const { return staging_; }
  // The granted block, in place. Empty when its chunk was not announced.
  std::span<const std::byte> Block(const GrantReply& grant, size_t i) const;
  const std::map<uint64_t, std::span<const std::byte>>& chunks() const { return chunks_; }
  const std::vector<uint64_t>& dropped() const { return dropped_; }  // POOL_DROPs, in order

 private:
  absl::StatusOr<uint64_t> Count(local::Builder& message);
  // nullopt: the answer comes by the socket.
  std::optional<Packet> CallByMailbox(std::string_view message);
  void TakeIn(Packet packet);  // POOL_ADD, POOL_DROP

  UniqueFd socket_;
  UniqueFd mailbox_fd_;
  std::unique_ptr<local::Mailbox> mailbox_;
  uint32_t packets_ = 0;  // received beside a mailbox
  uint64_t request_ = 0;
  std::span<std::byte> staging_;
  std::map<uint64_t, std::span<const std::byte>> chunks_;
  std::vector<uint64_t> dropped_;
};

}  // namespace kvarve::testing

#endif  // KVARVE_SERVICES_LOCAL_TESTING_RAW_CLIENT_H_
