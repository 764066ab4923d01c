// A page of memory beside a session's socket, through which a client's calls and their answers go:
// one call at a time, without the copies and allocations that the kernel makes for a packet. Half
// of a round trip through the socket is the kernel's (docs/decisions/0013).
//
// The socket stays what a session is: whatever does not fit here, comes unasked or brings
// descriptors goes there, and its end is the session's end. Both sides count the packets they send
// there, so that what was sent first is taken first: a packet before the call that follows it, a
// packet before the answer that follows it.
//
// A call: kEmpty -> kPosted (client) -> kTaken (daemon) -> kAnswered or kOnSocket (daemon) ->
// kEmpty (client). A client that waits no longer takes a posted call back, and the daemon never
// sees it; a taken one is answered late.
//
// Neither side trusts what lies here: it is read once, into memory of one's own, and checked there.
// Whatever a client writes costs it only its own session.
// THREADS: one at a time a side; RingForSocket and RingClient any.  BLOCKS: Await*.
#ifndef KVARVE_CLIENT_LOCAL_MAILBOX_H_
#define KVARVE_CLIENT_LOCAL_MAILBOX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvarve::local {

class Mailbox {
 public:
  static constexpr size_t kMaxMessageBytes = 64 * 1024;
  static constexpr uint64_t kBytes = 4096 + 2 * kMaxMessageBytes;  // of the memory

  // The daemon's: memory that cannot change its size; `fd` gets the descriptor to pass on.
  // Unavailable: the system has none.
  static absl::StatusOr<std::unique_ptr<Mailbox>> Create(UniqueFd* fd);
  // The client's. InvalidArgument: not such memory; ResourceExhausted: no address space.
  static absl::StatusOr<std::unique_ptr<Mailbox>> Map(int fd);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // ---- The client's side.
  // Leaves a call and wakes the daemon. REQUIRES: is_free(), and it fits.
  void Post(std::string_view message);
  bool is_free() const;
  // Takes back a call that the daemon has not taken; false: it has.
  bool Withdraw();
  // The daemon last ran on this thread's processor: looking out for it would keep it from running.
  bool daemon_is_here() const;
  // An answer lies here, or the daemon sent one through the socket.
  bool has_answer() const;
  // Until something rings, at most `nanos`; may return early.
  void AwaitAnswer(int64_t nanos);
  // The answer lies here, and not in the socket.
  bool has_answer_here() const;
  // Packets that the daemon had sent through the socket before the answer. REQUIRES:
  // has_answer_here().
  uint32_t packets_before_answer() const;
  // Copies the answer and frees the mailbox; 0: it comes through the socket. InvalidArgument: it
  // has an impossible length. REQUIRES: has_answer().
  absl::StatusOr<size_t> TakeAnswer(std::span<uint8_t> buffer);
  // Tells the daemon to look at its socket: a packet was sent there, or its end has come.
  void RingForSocket();

  // ---- The daemon's side.
  bool has_call() const;
  // Takes a call that lies here: the client cannot take it back any more. False: there is none.
  bool ClaimCall();
  bool client_is_here() const;  // as daemon_is_here()
  // Copies the call that was claimed. InvalidArgument: an impossible length. `buffer` has
  // kMaxMessageBytes.
  absl::StatusOr<size_t> ReadCall(std::span<uint8_t> buffer) const;
  // Answers the call that was taken, `packets` having been sent through the socket before. False:
  // it does not fit.
  bool Answer(std::string_view message, uint32_t packets);
  // The call's answer goes through the socket, or it has none.
  void AnswerOnSocket();
  // How often the socket was worth a look, by what the client says.
  uint32_t rings_for_socket() const;
  // Until something rings, at most `nanos`; at once if something rang since the last time. False:
  // nothing did.
  bool AwaitCall(int64_t nanos);
  // A waiting client returns from AwaitAnswer: the session ended.
  void RingClient();

 private:
  // Wakes the one who waits on it; costs no system call when nobody does.
  struct Bell {
    std::atomic<uint32_t> rings{0};
    std::atomic<uint32_t> sleeping{0};
    void Ring();
    // Returns at once if it rang after `heard`. The number of rings.
    uint32_t Await(uint32_t heard, int64_t nanos);
  };
  enum State : uint32_t { kEmpty = 0, kPosted = 1, kTaken = 2, kAnswered = 3, kOnSocket = 4 };
  struct Memory {
    alignas(64) std::atomic<uint32_t> state{kEmpty};
    std::atomic<uint32_t> call_bytes{0}, answer_bytes{0};
    std::atomic<uint32_t> rings_for_socket{0}, packets_before_answer{0};
    std::atomic<int32_t> client_place{0}, daemon_place{0};  // 1 + processor, at the last message
    alignas(64) Bell daemon;
    alignas(64) Bell client;
    alignas(4096) uint8_t call[kMaxMessageBytes];
    uint8_t answer[kMaxMessageBytes];
  };
  static_assert(sizeof(Memory) == kBytes && std::atomic<uint32_t>::is_always_lock_free);

  Mailbox(void* memory, void* order) : memory_(static_cast<Memory*>(memory)), order_(order) {}

  Memory* const memory_;
  void* const order_;   // for ThreadSanitizer
  uint32_t heard_ = 0;  // rings, of the own side's bell
};

}  // namespace kvarve::local

#endif  // KVARVE_CLIENT_LOCAL_MAILBOX_H_
