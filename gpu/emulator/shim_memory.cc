// The shim's shared memory, asynchronous copies and atomics, and its list of kernels.
#include <cstdlib>
#include <cstring>
#include <map>

#include "gpu/emulator/shim_engine.h"
#include "storage/base/status_macros.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define KV_POISON(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define KV_UNPOISON(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
#define KV_POISON(at, bytes)
#define KV_UNPOISON(at, bytes)
#endif

namespace kvarve::shim {
namespace {

constexpr size_t kStaticSharedBytes = 48 << 10;
constexpr size_t kRedZoneBytes = 64;

std::map<std::string, const KernelEntry*>& KernelMap() {
  static auto& map = *new std::map<std::string, const KernelEntry*>;
  return map;
}

}  // namespace

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
