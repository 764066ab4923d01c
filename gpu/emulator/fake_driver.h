// A CUDA driver for tests: the whole table (gpu/device/driver.h) over host memory. Streams run on a
// thread of its own, in any legal order (seeded), and can be held and stepped; kernels run in the
// host shim. Memory that is given a part in work is watched by vector clocks: what a stream or the
// host touches without an event between is reported, whether or not the bytes came out wrong.
//
// One at a time: the table has no place for whose it is.
//
// THREADS: any.  BLOCKS: Step until it ran; the table's calls as a driver's do.
#ifndef KVARVE_GPU_EMULATOR_FAKE_DRIVER_H_
#define KVARVE_GPU_EMULATOR_FAKE_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gpu/device/driver.h"
#include "storage/base/mutex.h"

namespace kvarve::cuda {
struct FakeEntries;
}

namespace kvarve::fake {

using Clock = std::map<uint32_t, uint64_t>;  // by stream; the host is 0
void Merge(Clock* into, const Clock& from);

struct Access {
  uint64_t begin = 0, end = 0;
  bool write = false;
  uint32_t stream = 0;
  uint64_t time = 0;  // of that stream's clock
  std::string what;
};

struct EventState {  // of one cuEventRecord
  bool done = false;
  Clock clock;
};
struct Operation {
  std::string what;
  Clock host;                                    // when it was asked for
  std::function<bool()> ready;                   // null: always
  std::function<std::vector<Access>()> touches;  // asked when it runs: tables may come late
  std::vector<std::function<void()>> parts;      // one a step
  size_t next = 0;
  std::shared_ptr<EventState> records, waits;
  uint64_t written = 0, waited = 0;  // words of timelines
};
struct FakeStream {
  uint32_t number = 0;
  Clock clock;
  std::deque<Operation> queue;
};

class FakeDriver {
 public:
  struct Options {
    int version = 13000;
    bool read_only_registration = true;
    int compute_major = 9;
    cuda::Result load_result = cuda::kSuccess;  // of any module
    uint64_t memory_bytes = 1ull << 30;
    uint64_t max_registration = ~0ull;  // larger ones fail
    bool shares_allocations = false;    // legacy IPC: cuMemAlloc's memory is a memfd's
    int devices = 1;                    // the last byte of a device's UUID is its number
    uint64_t seed = 1;
  };
  explicit FakeDriver(const Options& options);
  ~FakeDriver();
  const cuda::Driver& table() const;

  // Nothing runs until Step or Go; whoever waits for an event then waits for them.
  void Hold();
  void Go();
  // Runs up to so many parts of operations; how many there were to run.
  int Step(int parts);
  size_t queued();

  // A stream of an engine's, that captures from Begin to End. End: whether the capture is valid.
  cuda::Stream NewEngineStream();
  void BeginCapture(cuda::Stream stream);
  bool EndCapture();

  // So many calls that a capture may forbid are refused as if one did.
  void RefuseNext(int calls);
  // The call that gives a stream work (a launch, a copy, a record, a wait) after so many more
  // fails.
  void FailCall(int after, cuda::Result failure);
  // An engine's own memory, which is the device's from now on.
  void Adopt(const void* at, size_t bytes);

  // What the host does to memory that work of a stream may touch.
  void HostReads(const void* at, size_t bytes, const std::string& what);
  void HostWrites(const void* at, size_t bytes, const std::string& what);
  // Others may write it, or it may vanish, from now on.
  void HostReleases(const void* at, size_t bytes, const std::string& what);

  std::vector<std::string> diagnostics();
  // "3 allocations, 1 stream"; empty: everything was given back.
  std::string leaks();
  uint64_t calls(const std::string& name);

 private:
  friend struct Entries;
  friend struct cuda::FakeEntries;
  struct Range {
    uint64_t bytes = 0;
    bool device = false, read_only = false;
    int fd = -1;            // of shareable memory
    bool is_chunk = false;  // of cuMemMap; else that of cuMemAlloc
    bool is_adopted = false;
  };
  static FakeDriver* current;

  void Run();
  bool RunOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(FakeStream* stream, Operation* operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enqueue(cuda::Stream stream, Operation operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Report(const std::string& text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The device's memory that an address lies in; end() where it is none's.
  std::map<uint64_t, Range>::iterator RangeOf(uint64_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False, with a report: the access lies outside of what is the device's to touch.
  bool MayTouch(const Access& access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reports what is not ordered before `access`; keeps it.
  bool Order(const Clock& clock, const Access& access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HostTouches(uint64_t at, uint64_t bytes, bool write, const std::string& what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: the call fails because a capture is under way.
  bool Safe(const char* call, bool even_relaxed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a stream may be given work: it does not capture, and the call is not to fail.
  cuda::Result MayQueue(const char* call, cuda::Stream stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Mutex mutex_;
  CondVar changed_;
  std::thread thread_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t permits_ ABSL_GUARDED_BY(mutex_) = -1;  // parts that may run; below 0: all
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::map<cuda::Stream, std::unique_ptr<FakeStream>> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<cuda::Event, std::shared_ptr<EventState>> events_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Range> ranges_ ABSL_GUARDED_BY(mutex_);  // live memory, by address
  std::map<uint64_t, uint64_t> reserved_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, int> handles_ ABSL_GUARDED_BY(mutex_);      // descriptors of memory
  std::map<uint64_t, Clock> timelines_ ABSL_GUARDED_BY(mutex_);  // by word
  std::deque<Access> history_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> diagnostics_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> calls_ ABSL_GUARDED_BY(mutex_);
  std::set<cuda::Stream> engine_streams_ ABSL_GUARDED_BY(mutex_);
  Clock host_ ABSL_GUARDED_BY(mutex_);
  cuda::Stream capturing_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool capture_valid_ ABSL_GUARDED_BY(mutex_) = true;
  int refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  int good_calls_ ABSL_GUARDED_BY(mutex_) = -1;  // then one that fails; below 0: none does
  cuda::Result call_failure_ ABSL_GUARDED_BY(mutex_) = cuda::kSuccess;
  int contexts_ ABSL_GUARDED_BY(mutex_) = 0, libraries_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1, device_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The memory that a launch of a mover or packer touches, by its parameters.
std::vector<Access> TouchesOf(const std::string& kernel, const void* params);

}  // namespace kvarve::fake

#endif  // KVARVE_GPU_EMULATOR_FAKE_DRIVER_H_
