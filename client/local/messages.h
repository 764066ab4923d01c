// The same-host data plane's messages, version 1 (docs/formats.md 3). Unix SOCK_SEQPACKET: one
// message is one packet: a 24-byte header, a fixed body, then packed arrays; little-endian; no
// pointers, no text but UTF-8 in counted fields. Shared by the client and the daemon; the parsers
// here are the only ones, and are fuzzed. The socket's side of it is socket.h.
//
// Parse* check every length and count against the packet and refuse with InvalidArgument; views
// point into it. They read the packet bytewise: it needs no alignment. THREADS: any.
#ifndef KVARVE_CLIENT_LOCAL_MESSAGES_H_
#define KVARVE_CLIENT_LOCAL_MESSAGES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/status_macros.h"
#include "storage/block/block_key.h"
#include "storage/block/namespace.h"

namespace kvarve::local {

static_assert(std::endian::native == std::endian::little, "messages are copied as they lie");

inline constexpr uint16_t kVersionMin = 1;
inline constexpr uint16_t kVersionMax = 1;
inline constexpr size_t kMaxKeysPerLookup = 8192;
inline constexpr size_t kMaxBlocksPerAcquire = 4096;  // and per PUT and READ
inline constexpr size_t kMaxMessageBytes = 320 * 1024;
inline constexpr size_t kMaxNamespacesPerHello = 64;
inline constexpr size_t kMaxEngineIdBytes = 128;  // and of a client's name and a daemon's version
inline constexpr size_t kMaxLeasesPerRelease = 8192;
inline constexpr size_t kMaxErrorTextBytes = 1024;  // longer ones are cut

enum class Type : uint16_t {
  kHello = 1,
  kWelcome = 2,
  kOpenNamespace = 3,
  kNamespaceOpened = 4,
  kLookup = 5,
  kLookupReply = 6,
  kAcquire = 7,
  kGrant = 8,
  kRelease = 9,  // one-way
  kPut = 10,
  kPutReply = 11,
  kRead = 12,
  kReadReply = 13,  // copy-out into staging by the daemon
  kTouch = 14,
  kTouchReply = 15,
  kInvalidate = 16,
  kInvalidateReply = 17,
  kReportCorrupt = 18,
  kReportCorruptReply = 19,
  kSync = 20,
  kSyncReply = 21,  // announces all chunks; also the ping
  kAdmin = 22,
  kAdminReply = 23,  // JSON both ways: status, stats, resize, namespaces
  kPoolAdd = 24,     // daemon -> client, one fd
  kPoolDrop = 25,
  kPoolDropped = 26,  // daemon -> client; client -> daemon when unmapped
  kBye = 27,          // client -> daemon: no view left; ends this or an earlier session
  kError = 28,        // answers a request that failed as a whole
};

struct Header {
  uint16_t type = 0;
  uint16_t version = kVersionMax;
  uint32_t body_bytes = 0;  // of all that follows; must match the packet
  uint64_t request = 0;     // chosen by the client, given back in the answer; 0 in unasked messages
  uint64_t reserved = 0;    // sent as 0, not read
};
static_assert(sizeof(Header) == 24);

enum class Role : uint8_t { kTool = 0, kScheduler = 1, kWorker = 2 };

// kTakesMailbox: the client can use a mailbox (mailbox.h).
enum HelloFlags : uint8_t { kTakesMailbox = 1 };

// ---- Opening. HELLO: HelloBody, engine_id, client name, then per namespace u32 length,
// descriptor, digest[32].
struct HelloBody {
  uint16_t version_min = kVersionMin, version_max = kVersionMax;
  uint8_t role = 0, flags = 0;  // HelloFlags; those that the daemon does not know are nothing to it
  uint16_t dp_rank = 0, pp_rank = 0, tp_rank = 0;
  uint16_t engine_id_bytes = 0, client_name_bytes = 0;
  uint32_t namespaces = 0;
  uint32_t send_buffer_bytes = 0;  // SO_SNDBUF that the client got
  uint64_t staging_bytes = 0;      // wanted
};
static_assert(sizeof(HelloBody) == 32);
struct Hello {
  HelloBody body;
  std::string engine_id, client_name;
  std::vector<NamespaceDescriptor> namespaces;  // client's part
  std::vector<NamespaceDigest> digests;         // of the client's part, as the client computes it
};

// OPEN_NAMESPACE: one namespace in HELLO's form. NAMESPACE_OPENED: one NamespaceOpenedBody with
// code 0; a refusal is an ERROR with its reason.
struct OpenNamespace {
  NamespaceDescriptor descriptor;
  NamespaceDigest digest;
};

// WELCOME: WelcomeBody, daemon version text, then NamespaceOpenedBody each, in HELLO's order. fd 0:
// the staging memfd, when staging_bytes > 0; the next: the mailbox's, when mailbox_bytes > 0.
// POOL_ADD messages follow.
struct WelcomeBody {
  uint16_t version = 0, daemon_version_bytes = 0;
  uint32_t namespaces = 0;
  uint64_t incarnation = 0, session = 0;
  uint8_t session_token[16] = {};  // lets a later session of the same client say BYE for this one
  uint64_t staging_bytes = 0;      // granted; may be less, or 0
  uint32_t max_keys = 0, max_blocks = 0, max_message_bytes = 0;
  uint32_t mailbox_bytes = 0;  // 0: none
};
static_assert(sizeof(WelcomeBody) == 64);
struct NamespaceOpenedBody {
  uint32_t code = 0;  // absl::StatusCode; 0 is open
  uint32_t handle = 0;
  uint8_t ns_id[16] = {};
  uint64_t block_bytes = 0;
  uint32_t key_bytes = 0, pad = 0;
};
static_assert(sizeof(NamespaceOpenedBody) == 40);
struct Welcome {
  WelcomeBody body;
  std::string daemon_version;
  std::vector<NamespaceOpenedBody> namespaces;
};

// ---- Requests with keys: KeysBody, then `keys` x key_bytes (of the namespace), then `extra` x
// u64. LOOKUP, ACQUIRE, TOUCH, REPORT_CORRUPT: no extra. PUT, READ: the staging offset of each
// block. At least one key.
enum KeysFlags : uint32_t { kHasParent = 1 };
struct KeysBody {
  uint32_t ns = 0, keys = 0;
  uint32_t key_bytes = 0, flags = 0;
  uint64_t request_id = 0;    // of the engine's request, for touches
  uint32_t hold_ms = 0;       // LOOKUP: hold what is found
  uint32_t first_depth = 0;   // PUT
  uint32_t recompute_us = 0;  // PUT, LOOKUP: cost of one block to the engine; 0: unknown
  uint32_t wait_ms = 0;       // PUT: how long the client waits when its rate is used up
  uint8_t parent[32] = {};    // PUT
};
static_assert(sizeof(KeysBody) == 72);
struct KeysView {
  KeysBody body;
  std::span<const uint8_t> packed_keys;
  std::span<const uint8_t> packed_extra;  // u64 each, unaligned
  BlockKey Key(size_t i) const;
  uint64_t Extra(size_t i) const;
};

// ---- Answers.
struct LookupReplyBody {
  uint32_t hit_blocks = 0;   // leading blocks found
  uint32_t host_blocks = 0;  // of them in the host tier
  uint64_t hold = 0;         // lease id of the hold; 0: none
};
static_assert(sizeof(LookupReplyBody) == 16);
// kLoading: blocks are on their way from devices, nothing is leased, and it is worth asking again.
enum GrantFlags : uint32_t { kOverLeaseCap = 1, kLoading = 2 };
struct GrantBody {  // then GrantItem each
  uint64_t lease = 0, incarnation = 0, block_bytes = 0;
  uint32_t blocks = 0, flags = 0;
};
static_assert(sizeof(GrantBody) == 32);
struct GrantItem {
  uint64_t chunk = 0, offset = 0, checksum = 0;
};
static_assert(sizeof(GrantItem) == 24);
// Then u8 PutResult each. `retry_after_ms`: beside "shed", or "rejected_quota" of the rate of puts.
struct PutReplyBody {
  uint32_t blocks = 0, retry_after_ms = 0;
};
struct ReadReplyBody {  // then u64 checksum each
  uint32_t blocks = 0, pad = 0;
};
// Of TOUCH, INVALIDATE, REPORT_CORRUPT and SYNC, whose request is empty.
struct CountReplyBody {
  uint64_t count = 0;
};
// Then keys; none: the whole namespace.
struct InvalidateBody {
  uint32_t ns = 0, keys = 0, key_bytes = 0, pad = 0;
};
struct ReleaseBody {  // then u64 each
  uint32_t leases = 0, pad = 0;
};
struct PoolAddBody {
  uint64_t chunk = 0, bytes = 0, page_bytes = 0;
};
struct PoolDropBody {  // also POOL_DROPPED
  uint64_t chunk = 0;
};
struct ByeBody {
  uint64_t session = 0;  // 0: this one
  uint8_t token[16] = {};
};
struct ErrorBody {                    // then text
  uint32_t code = 0, text_bytes = 0;  // absl::StatusCode
};
struct AdminBody {  // ADMIN and its reply; then JSON
  uint32_t text_bytes = 0, pad = 0;
};

// Bytes after a body, by its counts; ParseBody demands exactly these. nullopt: a count over its
// limit.
std::optional<size_t> TailBytes(const GrantBody& body);
std::optional<size_t> TailBytes(const PutReplyBody& body);
std::optional<size_t> TailBytes(const ReadReplyBody& body);
std::optional<size_t> TailBytes(const InvalidateBody& body);
std::optional<size_t> TailBytes(const ReleaseBody& body);
std::optional<size_t> TailBytes(const ErrorBody& body);
std::optional<size_t> TailBytes(const AdminBody& body);
inline std::optional<size_t> TailBytes(const LookupReplyBody&) { return 0; }
inline std::optional<size_t> TailBytes(const NamespaceOpenedBody&) { return 0; }
inline std::optional<size_t> TailBytes(const CountReplyBody&) { return 0; }
inline std::optional<size_t> TailBytes(const PoolAddBody&) { return 0; }
inline std::optional<size_t> TailBytes(const PoolDropBody&) { return 0; }
inline std::optional<size_t> TailBytes(const ByeBody&) { return 0; }

// ---- Building: a message is a byte string with its header in place.
class Builder {
 public:
  // `body_bytes`: how many are expected, to have the memory at once.
  Builder(Type type, uint64_t request, size_t body_bytes = 0);
  template <typename Pod>
  Builder& Add(const Pod& pod) {
    return AddBytes(&pod, sizeof(pod));
  }
  Builder& AddBytes(const void* data, size_t size);
  // Zeros to be written over; valid until the next call.
  uint8_t* AddSpace(size_t size);
  Builder& AddKeys(std::span<const BlockKey> keys, uint32_t key_bytes);
  size_t size() const { return bytes_.size(); }
  // Fills in body_bytes. REQUIRES: at most kMaxMessageBytes.
  std::string Finish() &&;

 private:
  std::string bytes_;
};
std::string BuildHello(const Hello& hello, uint64_t request);
std::string BuildOpenNamespace(const OpenNamespace& open, uint64_t request);
std::string BuildWelcome(const Welcome& welcome, uint64_t request);
std::string BuildError(uint64_t request, const absl::Status& status);

// ---- Parsing. `packet` is a whole message, header included.
// The length fits, and the version is spoken here (HELLO, WELCOME and ERROR pass in any). Types are
// not checked: the receiver answers an unknown one with an ERROR.
absl::StatusOr<Header> ParseHeader(std::span<const uint8_t> packet);
absl::StatusOr<Hello> ParseHello(std::span<const uint8_t> packet);
absl::StatusOr<OpenNamespace> ParseOpenNamespace(std::span<const uint8_t> packet);
absl::StatusOr<Welcome> ParseWelcome(std::span<const uint8_t> packet);
// `extras_per_key` is 0 or 1, by the message's type.
absl::StatusOr<KeysView> ParseKeys(std::span<const uint8_t> packet, int extras_per_key);
// The status that it carries; never OK.
absl::Status ParseError(std::span<const uint8_t> packet);

absl::StatusOr<std::span<const uint8_t>> ParseFixed(std::span<const uint8_t> packet, void* body,
                                                    size_t body_bytes);
absl::Status TailMismatch(std::span<const uint8_t> packet);
// Every message of one body and TailBytes(body) bytes after it: writes the body, `items` is what
// follows. REQUIRES: packet's type is one that has such a Body.
template <typename Body>
absl::Status ParseBody(std::span<const uint8_t> packet, Body* body,
                       std::span<const uint8_t>* items = nullptr) {
  absl::StatusOr<std::span<const uint8_t>> tail = ParseFixed(packet, body, sizeof(Body));
  if (!tail.ok()) return tail.status();
  const std::optional<size_t> wanted = TailBytes(*body);
  if (!wanted.has_value() || *wanted != tail->size()) return TailMismatch(packet);
  if (items != nullptr) *items = *tail;
  return absl::OkStatus();
}
// Item `i` of packed items. REQUIRES: it lies inside.
template <typename Pod>
Pod ItemAt(std::span<const uint8_t> items, size_t i) {
  Pod pod;
  KV_CHECK((i + 1) * sizeof(Pod) <= items.size());
  std::memcpy(&pod, items.data() + i * sizeof(Pod), sizeof(Pod));
  return pod;
}

}  // namespace kvarve::local

#endif  // KVARVE_CLIENT_LOCAL_MESSAGES_H_
