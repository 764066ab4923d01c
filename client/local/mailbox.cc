#include "client/local/mailbox.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "client/local/sealed_memory.h"
#include "storage/base/status_macros.h"

namespace kvarve::local {
namespace {

// Not a private futex: the two sides are two processes.
long Futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

// A test has both sides in one process, each with a mapping of its own: two memories to
// ThreadSanitizer, which is told here that what one side leaves comes before what the other takes.
#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
void* OrderOf(int fd) {
  static char orders[4096];
  struct stat status;
  KV_CHECK(::fstat(fd, &status) == 0);
  return &orders[status.st_ino % sizeof(orders)];
}
void Leaves(void* order) { __tsan_release(order); }
void Takes(void* order) { __tsan_acquire(order); }
#else
void* OrderOf(int) { return nullptr; }
void Leaves(void*) {}
void Takes(void*) {}
#endif

// Of this thread; 0: unknown.
int32_t Place() { return ::sched_getcpu() + 1; }

}  // namespace

// Either the sleeper sees the new number of rings, or the ringer sees the sleeper: both write
// first and read then, in one order for all.
void Mailbox::Bell::Ring() {
  rings.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping.load(std::memory_order_seq_cst) != 0) Futex(&rings, FUTEX_WAKE, 1, nullptr);
}

uint32_t Mailbox::Bell::Await(uint32_t heard, int64_t nanos) {
  sleeping.store(1, std::memory_order_seq_cst);
  if (rings.load(std::memory_order_seq_cst) == heard) {
    const timespec timeout = {nanos / 1'000'000'000, nanos % 1'000'000'000};
    Futex(&rings, FUTEX_WAIT, heard, &timeout);
  }
  sleeping.store(0, std::memory_order_relaxed);
  return rings.load(std::memory_order_acquire);
}

absl::StatusOr<std::unique_ptr<Mailbox>> Mailbox::Create(UniqueFd* fd) {
  KV_ASSIGN_OR_RETURN(void* const memory, MakeSealedMemory("kvarve-mailbox", kBytes, fd));
  return std::unique_ptr<Mailbox>(new Mailbox(memory, OrderOf(fd->get())));
}

absl::StatusOr<std::unique_ptr<Mailbox>> Mailbox::Map(int fd) {
  KV_ASSIGN_OR_RETURN(void* const memory, MapSealedMemory(fd, kBytes));
  return std::unique_ptr<Mailbox>(new Mailbox(memory, OrderOf(fd)));
}

Mailbox::~Mailbox() { ::munmap(memory_, kBytes); }

void Mailbox::Post(std::string_view message) {
  KV_CHECK(message.size() <= kMaxMessageBytes);
  std::memcpy(memory_->call, message.data(), message.size());
  memory_->call_bytes.store(static_cast<uint32_t>(message.size()), std::memory_order_relaxed);
  memory_->client_place.store(Place(), std::memory_order_relaxed);
  heard_ = memory_->client.rings.load(std::memory_order_relaxed);
  Leaves(order_);
  memory_->state.store(kPosted, std::memory_order_release);
  memory_->daemon.Ring();
}

bool Mailbox::is_free() const { return memory_->state.load(std::memory_order_acquire) == kEmpty; }

bool Mailbox::Withdraw() {
  uint32_t posted = kPosted;
  return memory_->state.compare_exchange_strong(posted, kEmpty, std::memory_order_acq_rel);
}

bool Mailbox::daemon_is_here() const {
  return memory_->daemon_place.load(std::memory_order_relaxed) == Place();
}

bool Mailbox::client_is_here() const {
  return memory_->client_place.load(std::memory_order_relaxed) == Place();
}

bool Mailbox::has_answer() const {
  const uint32_t state = memory_->state.load(std::memory_order_acquire);
  return state == kAnswered || state == kOnSocket;
}

void Mailbox::AwaitAnswer(int64_t nanos) { heard_ = memory_->client.Await(heard_, nanos); }

bool Mailbox::has_answer_here() const {
  return memory_->state.load(std::memory_order_acquire) == kAnswered;
}

uint32_t Mailbox::packets_before_answer() const {
  return memory_->packets_before_answer.load(std::memory_order_relaxed);
}

absl::StatusOr<size_t> Mailbox::TakeAnswer(std::span<uint8_t> buffer) {
  const size_t size = has_answer_here() ? memory_->answer_bytes.load(std::memory_order_relaxed) : 0;
  if (size > kMaxMessageBytes || size > buffer.size()) {
    return absl::InvalidArgumentError(absl::StrCat("an answer of ", size, " bytes in a mailbox"));
  }
  Takes(order_);
  std::memcpy(buffer.data(), memory_->answer, size);
  memory_->state.store(kEmpty, std::memory_order_release);
  return size;
}

void Mailbox::RingForSocket() {
  memory_->rings_for_socket.fetch_add(1, std::memory_order_release);
  memory_->daemon.Ring();
}

bool Mailbox::has_call() const { return memory_->state.load(std::memory_order_acquire) == kPosted; }

bool Mailbox::ClaimCall() {
  uint32_t posted = kPosted;
  return has_call() &&
         memory_->state.compare_exchange_strong(posted, kTaken, std::memory_order_acq_rel);
}

absl::StatusOr<size_t> Mailbox::ReadCall(std::span<uint8_t> buffer) const {
  KV_CHECK(buffer.size() >= kMaxMessageBytes);
  Takes(order_);
  const size_t size = memory_->call_bytes.load(std::memory_order_relaxed);
  if (size == 0 || size > kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a call of ", size, " bytes in a mailbox"));
  }
  std::memcpy(buffer.data(), memory_->call, size);
  return size;
}

bool Mailbox::Answer(std::string_view message, uint32_t packets) {
  if (message.size() > kMaxMessageBytes) return false;
  std::memcpy(memory_->answer, message.data(), message.size());
  memory_->answer_bytes.store(static_cast<uint32_t>(message.size()), std::memory_order_relaxed);
  memory_->packets_before_answer.store(packets, std::memory_order_relaxed);
  memory_->daemon_place.store(Place(), std::memory_order_relaxed);
  Leaves(order_);
  memory_->state.store(kAnswered, std::memory_order_release);
  memory_->client.Ring();
  return true;
}

void Mailbox::AnswerOnSocket() {
  Leaves(order_);
  memory_->state.store(kOnSocket, std::memory_order_release);
  memory_->client.Ring();
}

uint32_t Mailbox::rings_for_socket() const {
  return memory_->rings_for_socket.load(std::memory_order_acquire);
}

bool Mailbox::AwaitCall(int64_t nanos) {
  const uint32_t before = heard_;
  heard_ = memory_->daemon.Await(before, nanos);
  return heard_ != before;
}

void Mailbox::RingClient() { memory_->client.Ring(); }

}  // namespace kvarve::local
