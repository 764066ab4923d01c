#include "gpu/emulator/fake_driver.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve::fake {

FakeDriver* FakeDriver::current = nullptr;

void Merge(Clock* into, const Clock& from) {
  for (const auto& [stream, time] : from) (*into)[stream] = std::max((*into)[stream], time);
}

FakeDriver::FakeDriver(const Options& options) : options_(options), random_(options.seed) {
  KV_CHECK(current == nullptr);
  current = this;
  host_[0] = 1;
  MutexLock lock(&mutex_);
  streams_[nullptr] = std::make_unique<FakeStream>();  // the default one
  streams_[nullptr]->number = static_cast<uint32_t>(next_++);
  engine_streams_.insert(nullptr);
  thread_ = std::thread([this] { Run(); });
}

FakeDriver::~FakeDriver() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
  current = nullptr;
}

void FakeDriver::Run() {
  MutexLock lock(&mutex_);
  while (!stop_) {
    if (permits_ == 0 || !RunOne()) {
      changed_.notify_all();  // to Step
      // A timeline's word is written by anybody, and nobody says so.
      changed_.wait_until(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
    } else if (permits_ > 0) {
      --permits_;
    }
  }
}

// One part of the operation at the head of some stream. False: none can run.
bool FakeDriver::RunOne() {
  std::vector<FakeStream*> able;
  for (const auto& [handle, stream] : streams_) {
    if (stream->queue.empty()) continue;
    const Operation& head = stream->queue.front();
    if (head.waits != nullptr && !head.waits->done) continue;
    if (head.ready == nullptr || head.ready()) able.push_back(stream.get());
  }
  if (able.empty()) return false;
  FakeStream* const stream = able[random_() % able.size()];
  Operation& operation = stream->queue.front();
  if (operation.next == 0) {
    Merge(&stream->clock, operation.host);
    ++stream->clock[stream->number];
    bool allowed = true;
    if (operation.touches != nullptr) {
      // A kernel's tables must be there before what they name is looked at.
      for (Access& access : operation.touches()) {
        access.stream = stream->number;
        access.time = stream->clock[stream->number];
        access.what = operation.what;
        allowed = allowed && Order(stream->clock, access) && MayTouch(access);
      }
    }
    if (!allowed) operation.parts.clear();
  }
  if (operation.next < operation.parts.size()) operation.parts[operation.next]();
  ++operation.next;
  if (operation.next >= operation.parts.size()) {
    Finish(stream, &operation);
    stream->queue.pop_front();
    changed_.notify_all();
  }
  return true;
}

void FakeDriver::Finish(FakeStream* stream, Operation* operation) {
  if (operation->waits != nullptr) Merge(&stream->clock, operation->waits->clock);
  if (operation->waited != 0) Merge(&stream->clock, timelines_[operation->waited]);
  if (operation->written != 0) Merge(&timelines_[operation->written], stream->clock);
  if (operation->records != nullptr) {
    operation->records->clock = stream->clock;
    operation->records->done = true;
  }
}

void FakeDriver::Enqueue(cuda::Stream handle, Operation operation) {
  operation.host = host_;
  streams_[handle]->queue.push_back(std::move(operation));
  changed_.notify_all();
}

void FakeDriver::Hold() {
  MutexLock lock(&mutex_);
  permits_ = 0;
}

void FakeDriver::Go() {
  MutexLock lock(&mutex_);
  permits_ = -1;
  changed_.notify_all();
}

int FakeDriver::Step(int parts) {
  MutexLock lock(&mutex_);
  KV_CHECK(permits_ == 0);
  permits_ = parts;
  changed_.notify_all();
  changed_.wait(mutex_);
  auto none_can = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return std::all_of(streams_.begin(), streams_.end(), [](const auto& entry) {
      const auto& queue = entry.second->queue;
      return queue.empty() || (queue.front().waits != nullptr && !queue.front().waits->done) ||
             (queue.front().ready != nullptr && !queue.front().ready());
    });
  };
  while (permits_ > 0 && !none_can()) changed_.wait(mutex_);
  return parts - static_cast<int>(std::exchange(permits_, 0));
}

size_t FakeDriver::queued() {
  MutexLock lock(&mutex_);
  size_t sum = 0;
  for (const auto& [handle, stream] : streams_) sum += stream->queue.size();
  return sum;
}

cuda::Stream FakeDriver::NewEngineStream() {
  MutexLock lock(&mutex_);
  const auto handle = reinterpret_cast<cuda::Stream>(next_);
  streams_[handle] = std::make_unique<FakeStream>();
  streams_[handle]->number = static_cast<uint32_t>(next_++);
  engine_streams_.insert(handle);
  return handle;
}

void FakeDriver::BeginCapture(cuda::Stream stream) {
  MutexLock lock(&mutex_);
  capturing_ = stream;
  capture_valid_ = true;
}

bool FakeDriver::EndCapture() {
  MutexLock lock(&mutex_);
  capturing_ = nullptr;
  return capture_valid_;
}

void FakeDriver::RefuseNext(int calls) {
  MutexLock lock(&mutex_);
  refusals_ = calls;
}

void FakeDriver::FailCall(int after, cuda::Result failure) {
  MutexLock lock(&mutex_);
  good_calls_ = after;
  call_failure_ = failure;
}

void FakeDriver::Adopt(const void* at, size_t bytes) {
  MutexLock lock(&mutex_);
  Range& range = ranges_[reinterpret_cast<uint64_t>(at)];
  range.bytes = bytes;
  range.device = range.is_adopted = true;
}

std::vector<std::string> FakeDriver::diagnostics() {
  MutexLock lock(&mutex_);
  return diagnostics_;
}

uint64_t FakeDriver::calls(const std::string& name) {
  MutexLock lock(&mutex_);
  return calls_[name];
}

std::string FakeDriver::leaks() {
  MutexLock lock(&mutex_);
  size_t allocations = 0, registrations = 0;
  for (const auto& [at, range] : ranges_) {
    allocations += range.device && !range.is_adopted ? 1 : 0;
    registrations += range.device ? 0 : 1;
  }
  const std::pair<size_t, const char*> counts[] = {
      {allocations, "allocations"},
      {registrations, "registrations"},
      {streams_.size() - engine_streams_.size(), "streams"},
      {events_.size(), "events"},
      {reserved_.size(), "reservations"},
      {handles_.size(), "handles"},
      {static_cast<size_t>(contexts_), "contexts"},
      {static_cast<size_t>(libraries_), "libraries"}};
  std::string text;
  for (const auto& [count, what] : counts) {
    if (count > 0) text += absl::StrFormat("%s%d %s", text.empty() ? "" : ", ", count, what);
  }
  return text;
}

}  // namespace kvarve::fake
