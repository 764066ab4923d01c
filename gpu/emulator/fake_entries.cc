// The table's calls: each checks where and when it is made, and queues what a driver would do
// later.
#include "gpu/emulator/fake_entries.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "gpu/emulator/shim.h"
#include "gpu/kernels/kernel_table.h"
#include "storage/base/status_macros.h"

namespace kvarve::fake {

using namespace cuda;  // NOLINT(google-build-using-namespace): the table's own words, all through

namespace {

constexpr Result kInvalidContext = 201;
constexpr int kPoison = 0xAB;
thread_local int t_contexts = 0;
thread_local int t_capture_mode = 0;  // global

}  // namespace

// Whether a call that can break a capture may be made. Some may by a relaxed thread.
bool FakeDriver::Safe(const char* call, bool even_relaxed) {
  ++calls_[call];
  if (refusals_ > 0) return --refusals_, false;
  if (capturing_ == nullptr || (even_relaxed && t_capture_mode == kCaptureRelaxed)) return true;
  capture_valid_ = false;
  Report(std::string("unsafe call during a capture: ") + call);
  return false;
}

Result FakeDriver::MayQueue(const char* call, cuda::Stream stream) {
  ++calls_[call];
  if (good_calls_ >= 0 && good_calls_-- == 0) return call_failure_;
  if (capturing_ == nullptr || stream != capturing_) return kSuccess;
  capture_valid_ = false;
  Report(std::string("work on a capturing stream: ") + call);
  return kStreamCaptureInvalidated;
}

struct Entries : cuda::FakeEntries {
  static FakeDriver& D() { return *FakeDriver::current; }

  static Result Init(unsigned) { return kSuccess; }
  static Result DriverGetVersion(int* version) { return *version = D().options_.version, kSuccess; }
  static Result GetErrorName(Result error, const char** name) {
    *name = error == kStreamCaptureUnsupported ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
            : error == kNoBinaryForGpu         ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
            : error == kOutOfMemory            ? "CUDA_ERROR_OUT_OF_MEMORY"
                                               : "CUDA_ERROR";
    return kSuccess;
  }
  static Result DeviceGetCount(int* count) { return *count = D().options_.devices, kSuccess; }
  static Result DeviceGet(DeviceOrdinal* device, int ordinal) {
    return *device = ordinal, kSuccess;
  }
  static Result DeviceGetName(char* name, int bytes, DeviceOrdinal) {
    return std::strncpy(name, "fake GPU", static_cast<size_t>(bytes)), kSuccess;
  }
  static Result DeviceGetUuid(Uuid* uuid, DeviceOrdinal device) {
    std::memset(uuid->bytes, 0x11, sizeof uuid->bytes);
    uuid->bytes[15] = static_cast<unsigned char>(device);
    return kSuccess;
  }
  static Result DeviceGetAttribute(int* value, Attribute attribute, DeviceOrdinal) {
    const FakeDriver::Options& options = D().options_;
    *value = attribute == kComputeMajor           ? options.compute_major
             : attribute == kReadOnlyHostRegister ? options.read_only_registration
                                                  : 0;
    return kSuccess;
  }
  static Result DevicePrimaryCtxRetain(Context* context, DeviceOrdinal) {
    KV_ENTER(d);
    ++d.contexts_;
    *context = reinterpret_cast<Context>(1);
    return kSuccess;
  }
  static Result DevicePrimaryCtxRelease(DeviceOrdinal) {
    KV_ENTER(d);
    --d.contexts_;
    return kSuccess;
  }
  static Result CtxPushCurrent(Context) { return ++t_contexts, kSuccess; }
  static Result CtxPopCurrent(Context*) { return --t_contexts, kSuccess; }
  static Result ThreadExchangeStreamCaptureMode(int* mode) {
    return std::swap(t_capture_mode, *mode), kSuccess;
  }

  static Result LibraryLoadData(Library* library, const void*, int*, void**, unsigned, int*, void**,
                                unsigned) {
    KV_ENTER(d);
    if (t_contexts == 0) return kInvalidContext;
    if (!d.Safe("cuLibraryLoadData", false)) return kStreamCaptureUnsupported;
    if (d.options_.load_result != kSuccess) return d.options_.load_result;
    ++d.libraries_;
    *library = reinterpret_cast<Library>(1);
    return kSuccess;
  }
  static Result LibraryUnload(Library) {
    KV_ENTER(d);
    --d.libraries_;
    return kSuccess;
  }
  static Result LibraryGetKernel(Kernel* kernel, Library, const char* name) {
    const shim::KernelEntry* const entry = shim::FindKernel(name);
    *kernel = reinterpret_cast<Kernel>(const_cast<shim::KernelEntry*>(entry));
    return entry == nullptr ? kNotFound : kSuccess;
  }
  static Result LaunchKernel(Kernel kernel, unsigned x, unsigned, unsigned, unsigned threads,
                             unsigned, unsigned, unsigned, Stream stream, void** arguments,
                             void**) {
    KV_ENTER(d);
    if (t_contexts == 0) return kInvalidContext;
    if (const Result no = d.MayQueue("cuLaunchKernel", stream); no != kSuccess) return no;
    const auto* const entry = reinterpret_cast<const shim::KernelEntry*>(kernel);
    const auto* const first = static_cast<const std::byte*>(arguments[0]);
    const auto params =
        std::make_shared<std::vector<std::byte>>(first, first + entry->params_bytes);
    Operation operation;
    operation.what = entry->name;
    operation.touches = [entry, params] { return TouchesOf(entry->name, params->data()); };
    operation.parts.push_back([&d, entry, params, x, threads]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      const std::string fault = shim::RunGrid({.grid = {x, 1, 1}, .block = {threads, 1, 1}},
                                              [&] { entry->run(params->data()); });
      if (!fault.empty()) d.Report(fault);
    });
    d.Enqueue(stream, std::move(operation));
    return kSuccess;
  }

  static Result MemAlloc(Address* at, size_t bytes) {
    KV_ENTER(d);
    if (t_contexts == 0) return kInvalidContext;
    if (!d.Safe("cuMemAlloc", false)) return kStreamCaptureUnsupported;
    if (d.device_bytes_ + bytes > d.options_.memory_bytes) return kOutOfMemory;
    int fd = -1;
    void* const memory = d.options_.shares_allocations
                             ? Allocate(bytes, &fd)
                             : std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    std::memset(memory, kPoison, bytes);
    *at = reinterpret_cast<Address>(memory);
    d.device_bytes_ += bytes;
    d.ranges_[*at] = {bytes, true, false, fd};
    return kSuccess;
  }
  static Result MemFree(Address at) {
    KV_ENTER(d);
    if (!d.Safe("cuMemFree", false)) return kStreamCaptureUnsupported;
    const auto found = d.ranges_.find(at);
    if (found == d.ranges_.end()) return kInvalidValue;
    d.HostTouches(at, found->second.bytes, true, "early release: cuMemFree");
    d.device_bytes_ -= found->second.bytes;
    const FakeDriver::Range range = found->second;
    d.ranges_.erase(found);
    if (range.fd < 0) {
      std::free(Host(at));
    } else {
      ::munmap(Host(at), range.bytes);
      ::close(range.fd);
    }
    return kSuccess;
  }

  static Result MemHostRegister(void* memory, size_t bytes, unsigned flags) {
    KV_ENTER(d);
    if (t_contexts == 0) return kInvalidContext;
    if (!d.Safe("cuMemHostRegister", false)) return kStreamCaptureUnsupported;
    const bool read_only = (flags & kReadOnly) != 0;
    if (read_only && !d.options_.read_only_registration) return kNotSupported;
    if (bytes > d.options_.max_registration) return kOutOfMemory;
    const auto at = reinterpret_cast<uint64_t>(memory);
    const auto after = d.ranges_.lower_bound(at);
    if ((after != d.ranges_.end() && after->first < at + bytes) ||
        (after != d.ranges_.begin() &&
         std::prev(after)->first + std::prev(after)->second.bytes > at))
      return kHostMemoryAlreadyRegistered;
    d.ranges_[at] = {bytes, false, read_only};
    return kSuccess;
  }
  static Result MemHostUnregister(void* memory) {
    KV_ENTER(d);
    if (!d.Safe("cuMemHostUnregister", false)) return kStreamCaptureUnsupported;
    const auto found = d.ranges_.find(reinterpret_cast<uint64_t>(memory));
    if (found == d.ranges_.end() || found->second.device) return kHostMemoryNotRegistered;
    d.HostTouches(found->first, found->second.bytes, true, "early release: cuMemHostUnregister");
    d.ranges_.erase(found);
    return kSuccess;
  }
  static Result MemHostGetDevicePointer(Address* at, void* memory, unsigned) {
    return *at = reinterpret_cast<Address>(memory), kSuccess;
  }

  // In two halves, so that a copy can be stopped between them.
  static void AddCopy(Operation* operation, Address to, Address from, size_t bytes) {
    const size_t half = bytes / 2;
    operation->parts.push_back([=] { std::memcpy(Host(to), Host(from), half); });
    operation->parts.push_back(
        [=] { std::memcpy(Host(to + half), Host(from + half), bytes - half); });
  }
  static Result MemcpyAsync(Address to, Address from, size_t bytes, Stream stream) {
    return Copies("cuMemcpyAsync", &to, &from, &bytes, 1, stream);
  }
  static Result MemcpyBatchAsync(Address* to, Address* from, size_t* bytes, size_t count,
                                 CopyAttributes* attributes, size_t* indices, size_t number,
                                 Stream stream) {
    // As the driver wants them: attributes from the first copy on, and no default stream.
    if (count == 0 || number != 1 || indices[0] != 0 || stream == nullptr) return kInvalidValue;
    if (attributes->source_access_order != kOrderStream) {
      KV_ENTER(d);
      for (size_t i = 0; i < count; ++i) {
        const auto after = d.ranges_.upper_bound(from[i]);
        if (after != d.ranges_.begin() && std::prev(after)->second.device)
          d.Report("cuMemcpyBatchAsync reads device memory in any order");
      }
    }
    return Copies("cuMemcpyBatchAsync", to, from, bytes, count, stream);
  }
  static Result Copies(const char* call, const Address* to, const Address* from,
                       const size_t* bytes, size_t count, Stream stream) {
    KV_ENTER(d);
    if (t_contexts == 0) return kInvalidContext;
    if (const Result no = d.MayQueue(call, stream); no != kSuccess) return no;
    Operation operation;
    operation.what = call;
    std::vector<Access> touches;
    for (size_t i = 0; i < count; ++i) {
      touches.push_back({from[i], from[i] + bytes[i], false});
      touches.push_back({to[i], to[i] + bytes[i], true});
      AddCopy(&operation, to[i], from[i], bytes[i]);
    }
    operation.touches = [touches] { return touches; };
    d.Enqueue(stream, std::move(operation));
    return kSuccess;
  }

  static Result StreamCreateWithPriority(Stream* stream, unsigned, int) {
    *stream = D().NewEngineStream();
    KV_ENTER(d);
    d.engine_streams_.erase(*stream);
    return kSuccess;
  }
  static Result StreamDestroy(Stream stream) {  // what it has still runs
    KV_ENTER(d);
    while (!d.streams_[stream]->queue.empty()) d.changed_.wait(d.mutex_);
    d.streams_.erase(stream);
    return kSuccess;
  }
  static Result StreamSynchronize(Stream stream) {
    KV_ENTER(d);
    if (!d.Safe("cuStreamSynchronize", true)) return kStreamCaptureUnsupported;
    FakeStream& it = *d.streams_[stream];
    while (!it.queue.empty()) d.changed_.wait(d.mutex_);
    Merge(&d.host_, it.clock);
    return kSuccess;
  }
  static Result StreamWaitEvent(Stream stream, Event event, unsigned) {
    KV_ENTER(d);
    if (const Result no = d.MayQueue("cuStreamWaitEvent", stream); no != kSuccess) return no;
    Operation operation;
    operation.waits = d.events_[event];
    d.Enqueue(stream, std::move(operation));
    return kSuccess;
  }
  static Result StreamIsCapturing(Stream stream, int* state) {
    KV_ENTER(d);
    *state = d.capturing_ != nullptr && d.capturing_ == stream ? 1 : kNotCapturing;
    return kSuccess;
  }
  static Result StreamWriteValue64(Stream stream, Address at, uint64_t value, unsigned) {
    KV_ENTER(d);
    Operation operation;
    operation.written = at;
    operation.parts.push_back(
        [=] { __atomic_store_n(reinterpret_cast<uint64_t*>(at), value, __ATOMIC_RELEASE); });
    d.Enqueue(stream, std::move(operation));
    return kSuccess;
  }
  static Result StreamWaitValue64(Stream stream, Address at, uint64_t value, unsigned) {
    KV_ENTER(d);
    Operation operation;
    operation.waited = at;
    operation.ready = [=] {
      return __atomic_load_n(reinterpret_cast<uint64_t*>(at), __ATOMIC_ACQUIRE) >= value;
    };
    d.Enqueue(stream, std::move(operation));
    return kSuccess;
  }

  static Result EventCreate(Event* event, unsigned) {
    KV_ENTER(d);
    *event = reinterpret_cast<Event>(d.next_++);
    d.events_[*event] = std::make_shared<EventState>();
    d.events_[*event]->done = true;
    return kSuccess;
  }
  static Result EventDestroy(Event event) {
    KV_ENTER(d);
    return d.events_.erase(event) == 1 ? kSuccess : kInvalidValue;
  }
  static Result EventRecord(Event event, Stream stream) {
    KV_ENTER(d);
    if (const Result no = d.MayQueue("cuEventRecord", stream); no != kSuccess) return no;
    Operation operation;
    operation.records = d.events_[event] = std::make_shared<EventState>();
    d.Enqueue(stream, std::move(operation));
    return kSuccess;
  }
  static Result EventQuery(Event event) {
    KV_ENTER(d);
    if (!d.Safe("cuEventQuery", true)) return kStreamCaptureUnsupported;
    const EventState& state = *d.events_[event];
    if (!state.done) return kNotReady;
    Merge(&d.host_, state.clock);  // from now on the host comes after it
    return kSuccess;
  }
  static Result EventSynchronize(Event event) {
    KV_ENTER(d);
    if (!d.Safe("cuEventSynchronize", true)) return kStreamCaptureUnsupported;
    const std::shared_ptr<EventState> state = d.events_[event];
    while (!state->done) d.changed_.wait(d.mutex_);
    Merge(&d.host_, state->clock);
    return kSuccess;
  }
};

const Driver& FakeDriver::table() const {
  static const Driver table = [] {
    Driver driver;
#define KV_FAKE_FIELD(name, symbol, version, parameters) driver.name = &Entries::name;
    KV_DRIVER_ENTRIES(KV_FAKE_FIELD)
#undef KV_FAKE_FIELD
    return driver;
  }();
  return table;
}

}  // namespace kvarve::fake
