#include "gpu/emulator/shim.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <string>

#include "gpu/emulator/shim_engine.h"

kvarve::shim::Index threadIdx, blockIdx, blockDim, gridDim;

namespace kvarve::shim {

Engine g_engine;

namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxGridYZ = 65535;

bool Same(const Site& a, const Site& b) { return a.line == b.line && a.file == b.file; }

// Back to the scheduler. Only it is told of what the fiber did so far, and only when the grid ends.
void Yield() {
  Release(&g_engine.end_order);
  g_engine.running->fiber.Yield();
}

}  // namespace

void Fail(const char* format, ...) {
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

namespace {

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

}  // namespace kvarve::shim
