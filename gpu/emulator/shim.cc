#include "gpu/emulator/shim.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>

#include "gpu/emulator/fiber.h"
#include "storage/base/status_macros.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define KV_POISON(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define KV_UNPOISON(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
#define KV_POISON(at, bytes)
#define KV_UNPOISON(at, bytes)
#endif

kvarve::shim::Index threadIdx, blockIdx, blockDim, gridDim;

namespace kvarve::shim {
namespace {

constexpr int kWarpLanes = 32;
constexpr size_t kStaticSharedBytes = 48 << 10;
constexpr size_t kRedZoneBytes = 64;
constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxGridYZ = 65535;
constexpr int kMaxPendingCopies = 64;  // of one thread
constexpr int kMaxSharedArrays = 16;
constexpr int kMaxCollectives = 8;  // of one warp, under different masks at once

enum class State { kReady, kBarrier, kCollective, kDone };
enum class Operation { kBarrier, kShuffleXor };

struct PendingCopy {
  void* to;
  const void* from;
  uint32_t bytes;
};

// A warp operation that its lanes arrive at one by one.
struct Collective {
  unsigned mask = 0, arrived = 0, left = 0;
  bool used = false, complete = false;
  Operation operation{};
  Site site{};
  uint32_t values[kWarpLanes];
};

struct Thread {
  Fiber fiber;
  Index index;
  int number = 0;
  State state = State::kReady;
  Site site{};
  Collective* collective = nullptr;
  // Asynchronous copies not yet waited for: the oldest first, in groups; behind them the open ones.
  std::array<PendingCopy, kMaxPendingCopies> copies;
  std::array<int, kMaxPendingCopies> group_sizes;
  int copy_count = 0, group_count = 0, open_count = 0;
  int Lane() const { return number % kWarpLanes; }
};

struct SharedArray {
  const void* key;
  size_t offset;
};

// What a fiber does to this is not seen by TSan, but allocations and library calls are: so fibers
// allocate nothing.
struct Engine {
  const std::function<void()>* body = nullptr;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<std::array<Collective, kMaxCollectives>> collectives;  // by warp
  int count = 0, live = 0, at_barrier = 0;
  Site barrier_site{};
  Thread* running = nullptr;
  bool failed = false;
  char fault[1200];  // why
  // [dynamic][red zone][static arrays, a red zone behind each]
  std::byte* shared = nullptr;
  size_t dynamic_bytes = 0, static_begin = 0, static_end = 0, shared_bytes = 0;
  std::array<SharedArray, kMaxSharedArrays> arrays;
  int array_count = 0;
  std::vector<std::byte*> used_shared;  // freed when the grid ends: a free would order its blocks
  // TSan's objects. Barriers take turns: who is at the next one already must not be ordered before
  // those who have yet to leave this one.
  char barrier_order[2] = {}, begin_order = 0, end_order = 0;
  unsigned barriers = 0;
};

Engine g_engine;

bool Same(const Site& a, const Site& b) { return a.line == b.line && a.file == b.file; }

// Back to the scheduler. Only it is told of what the fiber did so far, and only when the grid ends.
void Yield() {
  Release(&g_engine.end_order);
  g_engine.running->fiber.Yield();
}

// Ends the grid; the fiber is never run again.
[[noreturn]] __attribute__((format(printf, 1, 2))) void Fail(const char* format, ...) {
  Engine& e = g_engine;
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(e.fault, sizeof e.fault - 200, format, arguments);
  va_end(arguments);
  const int end = std::min<int>(length, sizeof e.fault - 200);
  std::snprintf(e.fault + end, sizeof e.fault - end, " [block (%u,%u,%u) thread (%u,%u,%u)]",
                blockIdx.x, blockIdx.y, blockIdx.z, e.running->index.x, e.running->index.y,
                e.running->index.z);
  e.failed = true;
  for (;;) Yield();
}

unsigned LiveLanes(int warp) {
  unsigned lanes = 0;
  for (int lane = 0; lane < kWarpLanes && warp * kWarpLanes + lane < g_engine.count; ++lane) {
    if (g_engine.threads[warp * kWarpLanes + lane]->state != State::kDone) lanes |= 1u << lane;
  }
  return lanes;
}

void ReleaseBarrier() {
  for (int i = 0; i < g_engine.count; ++i) {
    if (g_engine.threads[i]->state == State::kBarrier) g_engine.threads[i]->state = State::kReady;
  }
  g_engine.at_barrier = 0;
  ++g_engine.barriers;
}

void Complete(Collective* collective, int warp) {
  collective->complete = true;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if (!(collective->arrived >> lane & 1)) continue;
    Thread& thread = *g_engine.threads[warp * kWarpLanes + lane];
    if (thread.state == State::kCollective && thread.collective == collective)
      thread.state = State::kReady;
  }
}

// A thread that ended holds nobody up.
void OnExit(Thread* thread) {
  Engine& e = g_engine;
  thread->state = State::kDone;
  --e.live;
  if (e.live > 0 && e.at_barrier == e.live) ReleaseBarrier();
  const int warp = thread->number / kWarpLanes;
  const unsigned lanes = LiveLanes(warp);
  for (Collective& c : e.collectives[warp]) {
    if (c.used && !c.complete && (c.arrived & lanes) == (c.mask & lanes)) Complete(&c, warp);
  }
}

void ThreadMain() {
  Engine& e = g_engine;
  Acquire(&e.begin_order);
  (*e.body)();
  OnExit(e.running);
  for (;;) Yield();
}

const char* NameOf(Operation operation) {
  return operation == Operation::kBarrier ? "__syncwarp" : "__shfl_xor_sync";
}

std::string Deadlock() {
  std::map<std::string, int> places;
  for (int i = 0; i < g_engine.count; ++i) {
    const Thread& t = *g_engine.threads[i];
    std::string place = "ended";
    if (t.state == State::kBarrier) {
      place = std::string("at __syncthreads ") + t.site.file + ":" + std::to_string(t.site.line);
    } else if (t.state == State::kCollective) {
      const Collective& c = *t.collective;
      place = std::string("at ") + NameOf(c.operation) + " " + c.site.file + ":" +
              std::to_string(c.site.line);
    }
    ++places[place];
  }
  std::string text = "threads wait for ever:";
  for (const auto& [place, count] : places) text += " " + std::to_string(count) + " " + place + ";";
  return text;
}

// Fresh for each block, as undefined as CUDA leaves it: 0xFF is NaN in all the types of KV.
void NewShared(uint32_t dynamic_bytes) {
  Engine& e = g_engine;
  e.dynamic_bytes = dynamic_bytes;
  e.static_begin = (dynamic_bytes + 15) / 16 * 16 + kRedZoneBytes;
  e.static_end = e.static_begin;
  e.shared_bytes = (e.static_begin + kStaticSharedBytes + 127) / 128 * 128;
  e.shared = static_cast<std::byte*>(std::aligned_alloc(128, e.shared_bytes));
  std::memset(e.shared, 0xFF, e.shared_bytes);
  KV_POISON(e.shared + dynamic_bytes, e.shared_bytes - dynamic_bytes);
  e.array_count = 0;
  e.used_shared.push_back(e.shared);
}

void FreeShared() {
  for (std::byte* memory : g_engine.used_shared) {
    KV_UNPOISON(memory, g_engine.shared_bytes);
    std::free(memory);
  }
  g_engine.used_shared.clear();
}

void StartThreads(const Grid& grid) {
  Engine& e = g_engine;
  e.count = e.live = static_cast<int>(grid.block.x * grid.block.y * grid.block.z);
  e.at_barrier = 0;
  e.collectives.assign((e.count + kWarpLanes - 1) / kWarpLanes, {});
  // TSan's fibers are dear, so they are used again; rotated, so that a thread of one block is
  // ordered after one unrelated thread of an earlier block only, and races between blocks show.
  while (e.threads.size() < static_cast<size_t>(e.count) + 13)
    e.threads.push_back(std::make_unique<Thread>());
  std::rotate(e.threads.begin(), e.threads.begin() + 7, e.threads.end());
  for (int i = 0; i < e.count; ++i) {
    Thread& thread = *e.threads[i];
    thread.number = i;
    thread.index = {i % grid.block.x, i / grid.block.x % grid.block.y,
                    i / grid.block.x / grid.block.y};
    thread.state = State::kReady;
    thread.collective = nullptr;
    thread.copy_count = thread.group_count = thread.open_count = 0;
    thread.fiber.Reset(&ThreadMain);
  }
}

void RunBlock(const Grid& grid, std::mt19937_64* random) {
  Engine& e = g_engine;
  StartThreads(grid);
  NewShared(grid.dynamic_shared_bytes);
  Release(&e.begin_order);
  std::vector<int> order(e.count);
  for (int i = 0; i < e.count; ++i) order[i] = grid.order == Order::kReverse ? e.count - 1 - i : i;
  while (e.live > 0 && !e.failed) {
    if (grid.order == Order::kRandom) std::shuffle(order.begin(), order.end(), *random);
    bool progress = false;
    for (const int i : order) {
      Thread& thread = *e.threads[i];
      if (thread.state != State::kReady) continue;
      progress = true;
      e.running = &thread;
      threadIdx = thread.index;
      thread.fiber.Run();
      if (e.failed) return;
    }
    if (!progress) {
      e.failed = true;
      std::snprintf(e.fault, sizeof e.fault, "%s", Deadlock().c_str());
    }
  }
}

std::string WhyNoGrid(const Grid& grid) {
  const Index &g = grid.grid, &b = grid.block;
  if (g.x == 0 || g.y == 0 || g.z == 0 || b.x == 0 || b.y == 0 || b.z == 0) return "an empty grid";
  if (g.x > 0x7fffffffu || g.y > kMaxGridYZ || g.z > kMaxGridYZ) return "a grid beyond CUDA's";
  if (uint64_t{b.x} * b.y * b.z > kMaxThreads || b.z > 64) return "a block of too many threads";
  return "";
}

Collective& Join(unsigned mask, Operation operation, Site site) {
  Engine& e = g_engine;
  Thread& thread = *e.running;
  const int lane = thread.Lane();
  if (!(mask >> lane & 1))
    Fail("lane %d calls %s with mask %08x that does not name it at %s:%d", lane, NameOf(operation),
         mask, site.file, site.line);
  auto& list = e.collectives[thread.number / kWarpLanes];
  Collective* joined = nullptr;
  for (Collective& c : list) {
    if (c.used && !c.complete && c.mask == mask && !(c.arrived >> lane & 1)) joined = &c;
  }
  if (joined != nullptr && (joined->operation != operation || !Same(joined->site, site))) {
    Fail("divergent warp operations: %s:%d and %s:%d under mask %08x", joined->site.file,
         joined->site.line, site.file, site.line, mask);
  }
  for (Collective& c : list) {
    if (joined != nullptr || c.used) continue;
    c = Collective{};
    c.mask = mask;
    c.used = true;
    c.operation = operation;
    c.site = site;
    joined = &c;
  }
  if (joined == nullptr) Fail("more than %d warp operations at once", kMaxCollectives);
  return *joined;
}

void Arrive(Collective* collective) {
  Engine& e = g_engine;
  Thread& thread = *e.running;
  const int warp = thread.number / kWarpLanes;
  collective->arrived |= 1u << thread.Lane();
  const unsigned lanes = LiveLanes(warp);
  if ((collective->arrived & lanes) == (collective->mask & lanes)) {
    Complete(collective, warp);
  } else {
    thread.state = State::kCollective;
    thread.collective = collective;
    Yield();
  }
}

void Leave(Collective* collective) {
  collective->left |= 1u << g_engine.running->Lane();
  if (collective->left == collective->arrived) collective->used = false;
}

std::map<std::string, const KernelEntry*>& KernelMap() {
  static auto& map = *new std::map<std::string, const KernelEntry*>;
  return map;
}

}  // namespace

std::string RunGrid(const Grid& grid, const std::function<void()>& body) {
  Engine& e = g_engine;
  const std::string why = WhyNoGrid(grid);
  if (!why.empty()) return why;
  e.body = &body;
  e.failed = false;
  std::mt19937_64 random(grid.seed);
  const uint64_t blocks = uint64_t{grid.grid.x} * grid.grid.y * grid.grid.z;
  std::vector<uint64_t> order(blocks);
  for (uint64_t i = 0; i < blocks; ++i)
    order[i] = grid.order == Order::kReverse ? blocks - 1 - i : i;
  if (grid.order == Order::kRandom) std::shuffle(order.begin(), order.end(), random);
  blockDim = grid.block;
  gridDim = grid.grid;
  for (const uint64_t i : order) {
    blockIdx = {static_cast<unsigned>(i % grid.grid.x),
                static_cast<unsigned>(i / grid.grid.x % grid.grid.y),
                static_cast<unsigned>(i / grid.grid.x / grid.grid.y)};
    RunBlock(grid, &random);
    if (e.failed) break;
  }
  Acquire(&e.end_order);
  FreeShared();
  return e.failed ? e.fault : "";
}

void Barrier(Site site) {
  Engine& e = g_engine;
  Thread& thread = *e.running;
  if (e.at_barrier > 0 && !Same(e.barrier_site, site)) {
    Fail("divergent __syncthreads: %s:%d and %s:%d are waited on together", e.barrier_site.file,
         e.barrier_site.line, site.file, site.line);
  }
  e.barrier_site = thread.site = site;
  thread.state = State::kBarrier;
  ++e.at_barrier;
  char* const order = &e.barrier_order[e.barriers % 2];
  Release(order);
  if (e.at_barrier == e.live) ReleaseBarrier();
  Yield();  // always, so that a schedule may run others first
  Acquire(order);
}

void WarpBarrier(unsigned mask, Site site) {
  Collective& collective = Join(mask, Operation::kBarrier, site);
  Release(&collective);
  Arrive(&collective);
  Acquire(&collective);
  Leave(&collective);
}

// As in CUDA, a shuffle orders no memory.
uint32_t ShuffleXor(unsigned mask, uint32_t value, unsigned lanes, Site site) {
  Collective& collective = Join(mask, Operation::kShuffleXor, site);
  const unsigned from = g_engine.running->Lane() ^ lanes;
  collective.values[g_engine.running->Lane()] = value;
  Arrive(&collective);
  if (from >= kWarpLanes || !(collective.arrived >> from & 1))
    Fail("a shuffle reads lane %u, which takes no part, at %s:%d", from, site.file, site.line);
  const uint32_t answer = collective.values[from];
  Leave(&collective);
  return answer;
}

void* DynamicShared() { return g_engine.shared; }

void* StaticShared(const void* key, size_t bytes) {
  Engine& e = g_engine;
  for (int i = 0; i < e.array_count; ++i) {
    if (e.arrays[i].key == key) return e.shared + e.arrays[i].offset;
  }
  const size_t offset = (e.static_end + 15) / 16 * 16;
  e.static_end = offset + bytes + kRedZoneBytes;
  if (e.static_end > e.shared_bytes || e.array_count == kMaxSharedArrays)
    Fail("more than 48 KiB of static shared memory, or %d arrays", kMaxSharedArrays);
  e.arrays[e.array_count++] = {key, offset};
  KV_UNPOISON(e.shared + offset, bytes);
  return e.shared + offset;
}

void CopyAsync(void* shared, const void* global, uint32_t bytes) {
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % bytes != 0)
    Fail("a misaligned cp.async of %u bytes", bytes);
  Thread& thread = *g_engine.running;
  if (thread.copy_count == kMaxPendingCopies)
    Fail("more than %d asynchronous copies at once", kMaxPendingCopies);
  std::memset(shared, 0xFF, bytes);
  thread.copies[thread.copy_count++] = {shared, global, bytes};
  ++thread.open_count;
}

void CopyAsyncCommit() {
  Thread& thread = *g_engine.running;
  if (thread.group_count == kMaxPendingCopies)
    Fail("more than %d groups of asynchronous copies", kMaxPendingCopies);
  thread.group_sizes[thread.group_count++] = thread.open_count;
  thread.open_count = 0;
}

void CopyAsyncWait(int pending_allowed) {
  Thread& thread = *g_engine.running;
  int groups = 0, copies = 0;
  for (; thread.group_count - groups > pending_allowed; ++groups) {
    for (const int end = copies + thread.group_sizes[groups]; copies < end; ++copies) {
      const PendingCopy& copy = thread.copies[copies];
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }
  // A handful of them: element by element, so that no library call is seen on a fiber.
  for (int i = copies; i < thread.copy_count; ++i) thread.copies[i - copies] = thread.copies[i];
  for (int i = groups; i < thread.group_count; ++i)
    thread.group_sizes[i - groups] = thread.group_sizes[i];
  thread.copy_count -= copies;
  thread.group_count -= groups;
}

uint32_t AtomicAdd(uint32_t* at, uint32_t value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

KernelEntry::KernelEntry(const char* its_name, size_t its_bytes, KernelFunction its_run)
    : name(its_name), params_bytes(its_bytes), run(its_run) {
  KV_CHECK(KernelMap().emplace(its_name, this).second);
}

const KernelEntry* FindKernel(const std::string& name) {
  const auto found = KernelMap().find(name);
  return found == KernelMap().end() ? nullptr : found->second;
}

std::vector<const KernelEntry*> Kernels() {
  std::vector<const KernelEntry*> all;
  for (const auto& [name, entry] : KernelMap()) all.push_back(entry);
  return all;
}

}  // namespace kvarve::shim
