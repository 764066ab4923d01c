// An engine's pages for tests of the agent: in the fake driver's memory, chunks side by side whose
// border a tensor crosses, or one allocation. And the same pages on the CPU, to compare with.
//
// THREADS: one.
#ifndef KVARVE_GPU_AGENT_AGENT_PAGES_TESTING_H_
#define KVARVE_GPU_AGENT_AGENT_PAGES_TESTING_H_

#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gpu/agent/shared_memory.h"
#include "gpu/device/cuda_device.h"
#include "gpu/emulator/fake_driver.h"
#include "gpu/transfer/transfer_testing.h"
#include "storage/base/status_macros.h"
#include "storage/testing/holdings.h"

namespace kvarve::testing {

inline constexpr std::byte kAgentModule[1] = {};
inline constexpr int64_t kAgentPages = 24, kAgentPageTokens = 8;
inline constexpr BlockLayout kAgentLayout = {3, 2, 16, 32, 32, 2};
inline constexpr int64_t kPatience = 60'000'000'000;
inline constexpr uint64_t kChunk = 2 << 20;

inline fake::FakeDriver::Options FakeOptions(MemoryKind kind) {
  fake::FakeDriver::Options options;
  options.shares_allocations = kind == MemoryKind::kLegacy;
  return options;
}

class AgentPages {
 public:
  AgentPages(fake::FakeDriver* driver, MemoryKind kind, uint64_t seed)
      : table_(driver->table()), random_(seed) {
    device = OpenCudaDevice(table_, "", kAgentModule).value();
    std::byte* base = nullptr;
    if (kind == MemoryKind::kLegacy) {
      memory_ = device->Allocate(kBytes + 4096).value();
      base = reinterpret_cast<std::byte*>(memory_.address()) + 512;  // inside, as a tensor is
    } else {
      MapChunks();
      base = reinterpret_cast<std::byte*>(reserved_) + kChunk - 10 * 1024;
    }
    at_ = base;
    view = ViewAt(base);
    cpu_pages_.resize(kBytes);
    cpu_ = CpuTransfer(ViewAt(cpu_pages_.data()), kAgentLayout).value();
    for (size_t i = 0; i < kBytes; ++i) cpu_pages_[i] = static_cast<std::byte>(random_());
    std::memcpy(at_, cpu_pages_.data(), kBytes);
  }
  ~AgentPages() {
    if (reserved_ == 0) return;
    for (uint64_t i = 0; i < kChunks; ++i) table_.MemUnmap(reserved_ + i * kChunk, kChunk);
    table_.MemAddressFree(reserved_, kChunks * kChunk);
  }
  AgentPages(const AgentPages&) = delete;
  AgentPages& operator=(const AgentPages&) = delete;

  std::vector<int64_t> RandomIds() {
    const auto first = static_cast<int64_t>(random_() % kAgentPages);
    return {first, (first + 1 + static_cast<int64_t>(random_() % (kAgentPages - 1))) % kAgentPages};
  }
  // What a gather of these pages must give.
  std::vector<std::byte> Block(const std::vector<int64_t>& ids) {
    std::vector<std::byte> block(kAgentLayout.BlockBytes());
    KV_CHECK(MoveNow(*cpu_, MoveDirection::kGather, ids, 0, kAgentLayout.tokens, block).ok());
    return block;
  }
  // A new block, which a scatter is asked for next.
  std::vector<std::byte> Scattered(const std::vector<int64_t>& ids) {
    std::vector<std::byte> block(kAgentLayout.BlockBytes());
    for (std::byte& byte : block) byte = static_cast<std::byte>(random_());
    KV_CHECK(MoveNow(*cpu_, MoveDirection::kScatter, ids, 0, kAgentLayout.tokens, block).ok());
    return block;
  }
  // Writes the pages anew.
  void Restore() { std::memcpy(at_, cpu_pages_.data(), kBytes); }
  // The pages are what they must be.
  bool Right() const { return std::memcmp(at_, cpu_pages_.data(), kBytes) == 0; }

  std::shared_ptr<ComputeDevice> device;
  KvView view;

 private:
  static constexpr int64_t kRow = 32 * 2, kTensor = kAgentPages * 2 * kAgentPageTokens * kRow;
  static constexpr size_t kBytes = 6 * kTensor;
  static constexpr uint64_t kChunks = 2;

  static KvView ViewAt(std::byte* base) {
    KvView view;
    view.pages = kAgentPages, view.page_tokens = kAgentPageTokens, view.kv_heads = 2;
    view.k_dim = view.v_dim = 32, view.element_bytes = 2;
    for (uint32_t i = 0; i < kAgentLayout.layers; ++i) {
      const PagedTensor k{base + 2 * i * kTensor, kTensor, kTensor / kAgentPages, kRow, 2 * kRow};
      PagedTensor v = k;
      v.base += kTensor;
      view.layers.push_back({k, v});
    }
    return view;
  }
  void MapChunks() {
    cuda::AllocationProperties properties{};
    properties.type = 1, properties.handle_types = cuda::kHandlePosixFd;
    properties.location = {cuda::kLocationDevice, 0};
    const cuda::AccessDescription access{properties.location, 3};
    KV_CHECK(table_.MemAddressReserve(&reserved_, kChunks * kChunk, 0, 0, 0) == cuda::kSuccess);
    for (uint64_t i = 0; i < kChunks; ++i) {
      cuda::AllocationHandle handle = 0;
      const uint64_t at = reserved_ + i * kChunk;
      KV_CHECK(table_.MemCreate(&handle, kChunk, &properties, 0) == cuda::kSuccess);
      KV_CHECK(table_.MemMap(at, kChunk, 0, handle, 0) == cuda::kSuccess);
      table_.MemRelease(handle);
      KV_CHECK(table_.MemSetAccess(at, kChunk, &access, 1) == cuda::kSuccess);
    }
  }

  const cuda::Driver& table_;
  std::mt19937_64 random_;
  DeviceMemory memory_;
  cuda::Address reserved_ = 0;
  std::byte* at_ = nullptr;
  std::vector<std::byte> cpu_pages_;
  std::unique_ptr<Transfer> cpu_;
};

}  // namespace kvarve::testing

#endif  // KVARVE_GPU_AGENT_AGENT_PAGES_TESTING_H_
