// One connection to a kvarved, from HELLO to its end: requests and their answers, announced chunks,
// staging.
//
// A caller's thread sends and receives itself: calls and their answers through the mailbox that the
// daemon gave, where they fit, and all else through the socket. Answers carry the request's id; the
// late answer of a request that timed out is skipped, and what it gave is given back (a lease ends,
// a staging region is free again).
//
// THREADS: externally synchronised (the link's turn), except where a method says otherwise.
// BLOCKS: Connect and Call, up to their time-outs.
#ifndef KVARVE_CLIENT_CPP_CONNECTION_H_
#define KVARVE_CLIENT_CPP_CONNECTION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/endpoint.h"
#include "client/cpp/fork_guard.h"
#include "client/cpp/outbox.h"
#include "client/cpp/pool_map.h"
#include "client/cpp/staging.h"
#include "client/local/mailbox.h"
#include "client/local/messages.h"
#include "client/local/poll_wait.h"
#include "storage/base/unique_fd.h"

namespace kvarve::client {

class Connection {
 public:
  static constexpr size_t kMaxPacketsPerDrain = 256;

  struct Params {
    Endpoint endpoint;
    local::Hello hello;
    int64_t timeout_nanos = 0;  // of the whole opening
    int64_t poll_nanos = 0;     // see ClientOptions
    int cancel_fd = -1;         // readable: give up
    std::shared_ptr<HostMemoryObserver> memory;
  };
  ~Connection();
  // Connects and says HELLO. `outbox`: for Outbox::Begin, which is the link's. Unavailable: no
  // daemon, no answer, or not a daemon; the daemon's own refusal keeps its code. The text says what
  // to do.
  static absl::StatusOr<std::unique_ptr<Connection>> Connect(const Params& params,
                                                             std::shared_ptr<Outbox> outbox);

  uint64_t NextRequest() { return ++last_request_; }
  // Sends `message` and waits for its answer, which must have type `expected` and lies in this
  // connection's buffer until the next call. `region`: what the daemon reads or writes meanwhile.
  // DeadlineExceeded: no answer in time (timed_out()). Unavailable: the connection is over
  // (broken()). Others: the daemon's refusal.
  absl::StatusOr<std::span<const uint8_t>> Call(std::string_view message, local::Type expected,
                                                int64_t timeout_nanos,
                                                std::shared_ptr<StagingRegion> region = nullptr);
  // Sends a message that has no answer, or whose answer nobody awaits. Never waits.
  absl::Status SendOnly(std::string_view message);
  // Reads what lies in the socket and in the mailbox. True when an answer was among it: the daemon
  // lives.
  bool Drain();
  // The same of the mailbox alone, where at most one late answer lies. Between calls.
  bool TakeLateAnswer();

  // A hold was given, until then.
  void NoteHold(int64_t until_nanos) { held_until_ = std::max(held_until_, until_nanos); }
  int64_t held_until() const { return held_until_; }

  bool broken() const { return broken_; }
  const std::string& cause() const { return cause_; }  // of its end, when it was not asked for
  bool timed_out() const { return timed_out_; }        // the last Call
  // The daemon sent what cannot be: ends the connection.
  absl::Status Garbage(std::string_view what);
  // Says BYE and ends the connection. REQUIRES: nothing of it is in use.
  void Leave();
  // Ends the connection: the daemon sees it at once, chunks that no view holds are unmapped. Leaves
  // Outbox::End to the link: this may happen inside of Outbox::Flush.
  void Shutdown();

  // THREADS: any, below.
  int socket() const { return socket_.get(); }
  bool has_mailbox() const { return mailbox_ != nullptr; }
  // A caller that waits at the mailbox looks at the socket at once.
  void WakeCaller() const {
    if (mailbox_ != nullptr) mailbox_->RingClient();
  }
  const local::Welcome& welcome() const { return welcome_; }
  const std::shared_ptr<Session>& session() const { return session_; }
  PoolMap& pools() { return pools_; }
  const std::shared_ptr<StagingMemory>& staging() const { return staging_; }  // null: none granted
  // Keys that fit one request, with `extra_bytes` beside each key and at most `limit`.
  size_t MaxKeys(uint32_t key_bytes, size_t extra_bytes, size_t limit) const;
  size_t max_message_bytes() const { return max_message_bytes_; }

 private:
  Connection(ForkClosedSocket socket, std::shared_ptr<Outbox> outbox, const Params& params);
  absl::Status Open(const Params& params, size_t send_buffer_bytes);
  absl::Status TakeWelcome(std::span<const uint8_t> packet, size_t namespaces,
                           size_t send_buffer_bytes);
  // One packet, by `deadline`; empty span: none came in time.
  absl::StatusOr<std::span<const uint8_t>> NextPacket(int64_t deadline_nanos, int cancel_fd);
  absl::StatusOr<std::span<const uint8_t>> TakePacket(bool wait);
  absl::Status SendBy(std::string_view message, int64_t deadline_nanos);
  // Sends a packet now if there is room, and rings for it.
  absl::Status SendPacket(std::string_view message);
  absl::StatusOr<std::span<const uint8_t>> CallBySocket(std::string_view message, uint64_t request,
                                                        local::Type expected, int64_t timeout_nanos,
                                                        int64_t deadline_nanos, bool* withdrawn);
  // The answer by the socket. `wait`: in the receive itself, first.
  absl::StatusOr<std::span<const uint8_t>> Await(uint64_t request, local::Type expected,
                                                 int64_t deadline_nanos, bool wait);
  // What Call does, by the mailbox. `withdrawn`: the call timed out, and the daemon never sees it.
  absl::StatusOr<std::span<const uint8_t>> CallByMailbox(std::string_view message, uint64_t request,
                                                         local::Type expected,
                                                         int64_t deadline_nanos, bool* withdrawn);
  // Reads what lies in the socket; the answer to `request` when it is among it, else empty.
  absl::StatusOr<std::span<const uint8_t>> LookAtSocket(uint64_t request, local::Type expected);
  // The answer that lies in the mailbox, after all packets that were sent before it; empty: it
  // comes through the socket.
  absl::StatusOr<std::span<const uint8_t>> TakeFromMailbox();
  // Takes a late answer out of the mailbox. False: it is in use.
  bool FreeMailbox();
  // Reads what lies in the socket; whether an answer was among it.
  bool DrainSocket();
  // `packet` as the answer to `request`; empty: it was another one's, and is taken care of.
  absl::StatusOr<std::span<const uint8_t>> AnswerIn(std::span<const uint8_t> packet,
                                                    uint64_t request, local::Type expected);
  // A packet that nobody awaits: unasked messages and late answers.
  absl::Status TakeOther(const local::Header& header, std::span<const uint8_t> packet);
  // The same of one that was just received; ends the connection when it cannot be.
  absl::Status TakeUnawaited(std::span<const uint8_t> packet);
  void GiveBackLate(const local::Header& header, std::span<const uint8_t> packet);
  absl::Status Broken(const absl::Status& cause);
  absl::Status Ended() const;
  absl::Status NoAnswer();  // notes that the call timed out
  void SetReceiveTimeout(int64_t timeout_nanos);

  ForkClosedSocket socket_;
  const std::shared_ptr<Outbox> outbox_;
  const std::shared_ptr<Session> session_;
  const std::shared_ptr<HostMemoryObserver> observer_;
  PoolMap pools_;
  std::shared_ptr<StagingMemory> staging_;
  local::Welcome welcome_;
  size_t max_message_bytes_ = 0;
  std::vector<uint8_t> buffer_;
  std::vector<UniqueFd> fds_;  // of the last packet
  uint64_t last_request_ = 0;
  // What the daemon may still be using, by the request that timed out.
  std::unordered_map<uint64_t, std::shared_ptr<StagingRegion>> unanswered_;
  int64_t receive_timeout_nanos_ = 0;
  int64_t held_until_ = 0;
  local::PollWait poll_;
  std::unique_ptr<local::Mailbox> mailbox_;  // null: the daemon has none
  uint32_t packets_taken_ = 0;               // from the socket, after WELCOME
  ForkStamp stamp_;
  bool broken_ = false;
  std::string cause_;
  bool timed_out_ = false;
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_CONNECTION_H_
