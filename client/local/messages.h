// The same-host data plane's messages, version 1 (docs/formats.md 3). Unix SOCK_SEQPACKET: one message is one
// packet: a 24-byte header, a fixed body, then packed arrays; little-endian; no pointers, no text but UTF-8 in
// counted fields. Shared by the client and the daemon; the parsers here are the only ones, and are fuzzed.
//
// Parse* check every length and count against the packet and refuse with InvalidArgument; views point into it.
// THREADS: any.
#ifndef KVARVE_CLIENT_LOCAL_MESSAGES_H_
#define KVARVE_CLIENT_LOCAL_MESSAGES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
inline constexpr size_t kMaxEngineIdBytes = 128;

enum class Type : uint16_t {
  kHello = 1, kWelcome = 2,
  kOpenNamespace = 3, kNamespaceOpened = 4,
  kLookup = 5, kLookupReply = 6,
  kAcquire = 7, kGrant = 8,
  kRelease = 9,                          // one-way
  kPut = 10, kPutReply = 11,
  kRead = 12, kReadReply = 13,           // copy-out into staging by the daemon
  kTouch = 14, kTouchReply = 15,
  kInvalidate = 16, kInvalidateReply = 17,
  kReportCorrupt = 18, kReportCorruptReply = 19,
  kSync = 20, kSyncReply = 21,           // announces all chunks; also the ping
  kAdmin = 22, kAdminReply = 23,         // JSON both ways: status, stats, resize, namespaces
  kPoolAdd = 24,                         // daemon -> client, one fd
  kPoolDrop = 25, kPoolDropped = 26,     // daemon -> client; client -> daemon when unmapped
  kBye = 27,                             // client -> daemon: no view left; ends this or an earlier session
  kError = 28,                           // answers a request that failed as a whole
};

struct Header {
  uint16_t type = 0;
  uint16_t version = kVersionMax;
  uint32_t body_bytes = 0;   // of all that follows; must match the packet
  uint64_t request = 0;      // chosen by the client, given back in the answer; 0 in unasked messages
  uint64_t reserved = 0;
};
static_assert(sizeof(Header) == 24);

enum class Role : uint8_t { kTool = 0, kScheduler = 1, kWorker = 2 };

// ---- Opening. HELLO: HelloBody, engine_id, client name, then per namespace u32 length, descriptor, digest[32].
struct HelloBody {
  uint16_t version_min = kVersionMin, version_max = kVersionMax;
  uint8_t role = 0, pad = 0;
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

// WELCOME: WelcomeBody, daemon version text, then NamespaceOpenedBody each. fd 0: the staging memfd, when
// staging_bytes > 0. POOL_ADD messages follow.
struct WelcomeBody {
  uint16_t version = 0, daemon_version_bytes = 0;
  uint32_t namespaces = 0;
  uint64_t incarnation = 0, session = 0;
  uint8_t session_token[16] = {};  // lets a later session of the same client say BYE for this one
  uint64_t staging_bytes = 0;      // granted; may be less, or 0
  uint32_t max_keys = 0, max_blocks = 0, max_message_bytes = 0, pad = 0;
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

// ---- Requests with keys: KeysBody, then `keys` x key_bytes (of the namespace), then `extra` x u64.
// LOOKUP: no extra. ACQUIRE: none. PUT: staging offset of each block. READ: staging offset of each block. TOUCH: none.
enum KeysFlags : uint32_t { kHasParent = 1 };
struct KeysBody {
  uint32_t ns = 0, keys = 0;
  uint32_t key_bytes = 0, flags = 0;
  uint64_t request_id = 0;    // of the engine's request, for touches
  uint32_t hold_ms = 0;       // LOOKUP: hold what is found
  uint32_t first_depth = 0;   // PUT
  uint32_t recompute_us = 0, pad = 0;  // PUT
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
enum GrantFlags : uint32_t { kOverLeaseCap = 1 };
struct GrantBody {  // then GrantItem each
  uint64_t lease = 0, incarnation = 0, block_bytes = 0;
  uint32_t blocks = 0, flags = 0;
};
static_assert(sizeof(GrantBody) == 32);
struct GrantItem { uint64_t chunk = 0, offset = 0, checksum = 0; };
static_assert(sizeof(GrantItem) == 24);
struct PutReplyBody {  // then u8 PutResult each
  uint32_t blocks = 0, retry_after_ms = 0;
};
struct ReadReplyBody {  // then u64 checksum each
  uint32_t blocks = 0, pad = 0;
};
struct CountReplyBody { uint64_t count = 0; };  // TOUCH, INVALIDATE, REPORT_CORRUPT, SYNC
struct InvalidateBody {  // keys = 0: the whole namespace; then keys
  uint32_t ns = 0, keys = 0, key_bytes = 0, pad = 0;
};
struct ReleaseBody { uint32_t leases = 0, pad = 0; };  // then u64 each
struct PoolAddBody { uint64_t chunk = 0, bytes = 0, page_bytes = 0; };
struct PoolDropBody { uint64_t chunk = 0; };  // also POOL_DROPPED
struct ByeBody { uint64_t session = 0; uint8_t token[16] = {}; };  // session 0: this one
struct ErrorBody {  // then text
  uint32_t code = 0, text_bytes = 0;
};

// ---- Building: a message is a byte string with its header in place.
class Builder {
 public:
  Builder(Type type, uint64_t request);
  template <typename Pod>
  Builder& Add(const Pod& pod) { return AddBytes(&pod, sizeof(pod)); }
  Builder& AddBytes(const void* data, size_t size);
  Builder& AddKeys(std::span<const BlockKey> keys, uint32_t key_bytes);
  // Fills in body_bytes.
  std::string Finish() &&;

 private:
  std::string bytes_;
};
std::string BuildHello(const Hello& hello, uint64_t request);
std::string BuildError(uint64_t request, const absl::Status& status);

// ---- Parsing. `packet` is a whole message, header included.
absl::StatusOr<Header> ParseHeader(std::span<const uint8_t> packet);
absl::StatusOr<Hello> ParseHello(std::span<const uint8_t> packet);
absl::StatusOr<Welcome> ParseWelcome(std::span<const uint8_t> packet);
// `extras_per_key` is 0 or 1, by the message's type.
absl::StatusOr<KeysView> ParseKeys(std::span<const uint8_t> packet, int extras_per_key);
absl::Status ParseError(std::span<const uint8_t> packet);  // the status that it carries; never OK
// A body of one POD and `count` items of `item_bytes` after it, count read by `count_of(body)`.
// Writes the body; `items` is what follows.
template <typename Body>
absl::Status ParseBody(std::span<const uint8_t> packet, Body* body, std::span<const uint8_t>* items);

// ---- The socket. `fds` are sent with SCM_RIGHTS; never blocks: Unavailable on EAGAIN or a dead peer.
absl::Status Send(int socket, std::string_view message, std::span<const int> fds = {});

}  // namespace kvarve::local

#endif  // KVARVE_CLIENT_LOCAL_MESSAGES_H_
