#include "gpu/kernels/kernels_testing.h"

#include <gtest/gtest.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "gpu/kernels/packers_oracle_testing.h"

namespace kvarve::testing {
namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kSlack = 64;  // before and behind what is moved; must stay as it is

void Fill(std::span<std::byte> bytes, SeededRandom* random) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random->Next());
}

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

std::byte* RowOf(const MoveTensor& t, int64_t page, uint32_t head, uint32_t token) {
  return reinterpret_cast<std::byte*>(t.base) + page * t.page_stride + head * t.head_stride +
         token * t.token_stride;
}

// The naive statement of where each row lies; calls visit(row in a page, offset in the block,
// tensor).
template <typename Visit>
void EachRow(const PagedMemory& memory, std::span<const int64_t> ids, uint32_t begin, uint32_t end,
             const std::vector<MoveTensor>& tensors, Visit visit) {
  int64_t at = 0;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    for (uint32_t head = 0; head < memory.view.kv_heads; ++head) {
      for (uint32_t token = 0; token < memory.block.tokens; ++token, at += tensors[i].row_bytes) {
        const int64_t id = ids[token / memory.view.page_tokens];
        if (token < begin || token >= end || id < 0) continue;
        visit(RowOf(tensors[i], id, head, token % memory.view.page_tokens), at, i, head);
      }
    }
  }
}

// While it lives AddressSanitizer, where it is, allows no access to what lies in these rows.
class Poisoned {
 public:
  void Row(const std::byte* at, int64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    // Whole granules: what shares one with a neighbour stays.
    const uint64_t begin = (AddressOf(at) + 7) / 8 * 8, end = (AddressOf(at) + bytes) / 8 * 8;
    if (begin >= end) return;
    ASAN_POISON_MEMORY_REGION(reinterpret_cast<void*>(begin), end - begin);
    regions_.emplace_back(begin, end - begin);
#endif
  }
  ~Poisoned() {
#if defined(__SANITIZE_ADDRESS__)
    for (const auto& [begin, bytes] : regions_)
      ASAN_UNPOISON_MEMORY_REGION(reinterpret_cast<void*>(begin), bytes);
#endif
  }

 private:
  std::vector<std::pair<uint64_t, uint64_t>> regions_;
};

// Random distinct pages; about one in six is no page.
std::vector<int64_t> RandomIds(const PagedMemory& memory, size_t count, SeededRandom* random) {
  std::vector<int64_t> ids(memory.view.pages);
  std::iota(ids.begin(), ids.end(), 0);
  for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random->Below(i)]);
  ids.resize(count);
  for (int64_t& id : ids) id = random->OneIn(6) ? -1 : id;
  return ids;
}

// Two blocks in one buffer, at an offset that allows accesses of `align` bytes.
struct Blocks {
  Blocks(uint64_t block_bytes, uint32_t align, SeededRandom* random)
      : stride((block_bytes + 15) / 16 * 16 + 16), memory(2 * stride + 2 * kSlack) {
    Fill(memory, random);
    first = kSlack + align % 16;
    for (int i = 0; i < 2; ++i) addresses.push_back(AddressOf(memory.data()) + first + i * stride);
  }
  std::byte* Of(Bytes& bytes, int i) const { return bytes.data() + first + i * stride; }
  size_t stride, first = 0;
  Bytes memory;
  std::vector<uint64_t> addresses;
};

struct MoveCase {
  MoveCase(const KernelCase& which, PagedMemory* paged, SeededRandom* random, uint64_t block_bytes,
           std::vector<MoveTensor> its_tensors, uint32_t align)
      : memory(*paged),
        tensors(std::move(its_tensors)),
        per_block(paged->block.tokens / paged->view.page_tokens),
        ids(RandomIds(*paged, 2 * per_block, random)),
        blocks(block_bytes, align, random) {
    begin = random->Below(memory.block.tokens);
    end = begin + 1 + random->Below(memory.block.tokens - begin);
    if (random->OneIn(2)) begin = 0, end = memory.block.tokens;
    request.page_ids = ids;
    request.blocks = blocks.addresses;
    request.token_begin = begin, request.token_end = end;
    request.tensors_at = AddressOf(tensors.data());
    request.page_ids_at = AddressOf(ids.data());
    request.blocks_at = AddressOf(blocks.addresses.data());
  }
  Memory Touched() const {
    return {memory.bytes, blocks.memory, std::as_bytes(std::span(tensors)),
            std::as_bytes(std::span(ids)), std::as_bytes(std::span(blocks.addresses))};
  }
  std::span<const int64_t> IdsOf(int block) const {
    return std::span(ids).subspan(block * per_block, per_block);
  }
  // Pages that nobody names, and what blocks have room for where there is no page. `row_bytes`: of
  // a row of tensor i in its page.
  template <typename RowBytes>
  void Poison(Poisoned* poisoned, RowBytes row_bytes) const {
    const KvView& view = memory.view;
    const std::set<int64_t> named(ids.begin(), ids.end());
    for (size_t i = 0; i < tensors.size(); ++i) {
      for (uint32_t head = 0; head < view.kv_heads; ++head) {
        for (int64_t page = 0; page < view.pages; ++page) {
          for (uint32_t token = 0; token < view.page_tokens && !named.contains(page); ++token)
            poisoned->Row(RowOf(tensors[i], page, head, token), row_bytes(i));
        }
        for (size_t token = 0; token < 2 * memory.block.tokens; ++token) {
          if (ids[token / view.page_tokens] >= 0) continue;
          const uint64_t block = blocks.addresses[token / memory.block.tokens];
          const int64_t row = int64_t{head} * memory.block.tokens + token % memory.block.tokens;
          poisoned->Row(reinterpret_cast<std::byte*>(block) + tensors[i].block_offset +
                            row * tensors[i].row_bytes,
                        tensors[i].row_bytes);
        }
      }
    }
  }
  PagedMemory& memory;
  std::vector<MoveTensor> tensors;
  size_t per_block;
  std::vector<int64_t> ids;
  Blocks blocks;
  uint32_t begin, end;
  MoveRequest request;
};

template <typename Container>
std::span<const std::byte> BytesOf(const Container& values) {
  return std::as_bytes(std::span(values));
}

void Launched(const absl::StatusOr<Launch>& launch, uint32_t kernel, const Memory& memory,
              const RunLaunch& run) {
  ASSERT_TRUE(launch.ok()) << launch.status();
  ASSERT_STREQ(kKernels[launch->kernel].name, kKernels[kernel].name);
  ASSERT_EQ(run(*launch, memory), "");
}

void CheckMove(const KernelCase& which, const RunLaunch& run) {
  SeededRandom random(which.seed);
  const KernelInfo& info = kKernels[which.kernel];
  PagedMemory memory(which.layout, which.page_tokens, info.vector_bytes, 0, &random);
  MoveCase c(which, &memory, &random, memory.block.BlockBytes(),
             MoveTensors(memory.view, memory.block), info.vector_bytes);
  const bool gather = info.family == KernelFamily::kGather;
  Bytes pages = memory.bytes, blocks = c.blocks.memory;
  const std::byte* const real = memory.bytes.data();
  for (int i = 0; i < 2; ++i) {
    EachRow(memory, c.IdsOf(i), c.begin, c.end, c.tensors,
            [&](std::byte* row, int64_t at, uint32_t tensor, uint32_t) {
              std::byte* const in_block = c.blocks.Of(blocks, i) + at;
              std::byte* const in_page = pages.data() + (row - real);
              if (gather) {
                std::memcpy(in_block, in_page, c.tensors[tensor].row_bytes);
              } else {
                std::memcpy(in_page, in_block, c.tensors[tensor].row_bytes);
              }
            });
  }
  {
    Poisoned poisoned;
    c.Poison(&poisoned, [&](size_t i) { return c.tensors[i].row_bytes; });
    Launched(gather ? PlanGather(memory.view, memory.block, c.request)
                    : PlanScatter(memory.view, memory.block, c.request),
             which.kernel, c.Touched(), run);
  }
  EXPECT_TRUE(memory.bytes == pages) << "pages";
  EXPECT_TRUE(c.blocks.memory == blocks) << "blocks";
}

void CheckCopyPages(const KernelCase& which, const RunLaunch& run) {
  SeededRandom random(which.seed);
  PagedMemory memory(which.layout, which.page_tokens, kKernels[which.kernel].vector_bytes, 0,
                     &random);
  const std::vector<MoveTensor> tensors = MoveTensors(memory.view, memory.block);
  const std::vector<PageCopy> copies = {{1, 4}, {1, 0}, {3, 2}};
  Bytes pages = memory.bytes;
  for (const PageCopy& copy : copies) {
    for (const MoveTensor& t : tensors) {
      for (uint32_t head = 0; head < memory.view.kv_heads; ++head) {
        for (uint32_t token = 0; token < memory.view.page_tokens; ++token) {
          std::memcpy(pages.data() + (RowOf(t, copy.to, head, token) - memory.bytes.data()),
                      RowOf(t, copy.from, head, token), t.row_bytes);
        }
      }
    }
  }
  Launched(PlanCopyPages(memory.view, copies, AddressOf(tensors.data()), AddressOf(copies.data())),
           which.kernel, {memory.bytes, BytesOf(tensors), BytesOf(copies)}, run);
  EXPECT_TRUE(memory.bytes == pages);
}

void CheckReshape(const KernelCase& which, const RunLaunch& run) {
  SeededRandom random(which.seed);
  const uint32_t align = kKernels[which.kernel].vector_bytes;
  PagedMemory memory(which.layout, which.page_tokens, align, 0, &random);
  const KvView& view = memory.view;
  const std::vector<MoveTensor> tensors = MoveTensors(view, memory.block);
  const size_t per_layer = view.v_dim > 0 ? 2 : 1;
  const uint32_t layer = random.Below(view.layers.size());
  std::vector<int64_t> slots;
  for (int64_t slot = 0; slot < view.pages * view.page_tokens; ++slot) {
    if (random.OneIn(view.page_tokens / 4)) slots.push_back(random.OneIn(5) ? -1 : slot);
  }
  slots.push_back(-1);
  // K and V rows side by side, as a fused projection leaves them.
  const int64_t row = std::max(tensors[0].row_bytes, tensors[per_layer - 1].row_bytes);
  const int64_t head_stride = row * 2 + 16, token_stride = head_stride * view.kv_heads + 32;
  Bytes rows(token_stride * slots.size() + kSlack);
  Fill(rows, &random);
  std::byte* const first = rows.data() + align % 16;
  NewRows from{AddressOf(first), 0, token_stride, head_stride, 0, 0};
  if (per_layer == 2)
    from.v = from.k + row, from.v_token_stride = token_stride, from.v_head_stride = head_stride;
  Bytes pages = memory.bytes;
  for (size_t token = 0; token < slots.size(); ++token) {
    if (slots[token] < 0) continue;
    for (size_t i = 0; i < per_layer; ++i) {
      const MoveTensor& t = tensors[layer * per_layer + i];
      for (uint32_t head = 0; head < view.kv_heads; ++head) {
        std::byte* const to =
            RowOf(t, slots[token] / view.page_tokens, head, slots[token] % view.page_tokens);
        std::memcpy(pages.data() + (to - memory.bytes.data()),
                    first + token * token_stride + head * head_stride + i * row, t.row_bytes);
      }
    }
  }
  Launched(PlanReshapeAndCache(view, layer, from, slots, AddressOf(slots.data())), which.kernel,
           {memory.bytes, rows, BytesOf(slots)}, run);
  EXPECT_TRUE(memory.bytes == pages);
}

void CheckBatchCopy(const KernelCase& which, const RunLaunch& run) {
  SeededRandom random(which.seed);
  const uint32_t align = kKernels[which.kernel].vector_bytes;
  constexpr int kJobs = 40;
  constexpr size_t kStride = 4096;
  Bytes from(kJobs * kStride + kSlack), to(from.size());
  Fill(from, &random);
  Fill(to, &random);
  Bytes expected = to;
  std::vector<CopyJob> jobs;
  for (int i = 0; i < kJobs; ++i) {
    const uint64_t bytes = i == 0 ? 0 : i == 1 ? 4000 : random.Below(2000);
    const size_t source = i * kStride + align, target = (kJobs - 1 - i) * kStride + align * 3 % 32;
    jobs.push_back({AddressOf(from.data() + source), AddressOf(to.data() + target), bytes});
    std::memcpy(expected.data() + target, from.data() + source, bytes);
  }
  alignas(8) uint64_t done = 7;
  uint32_t counter = 0;
  const bool flagged = random.OneIn(2);
  Launched(flagged ? PlanBatchCopy(jobs, AddressOf(jobs.data()), AddressOf(&done), 99,
                                   AddressOf(&counter))
                   : PlanBatchCopy(jobs, AddressOf(jobs.data())),
           which.kernel,
           {from, to, BytesOf(jobs), BytesOf(std::span(&done, 1)), BytesOf(std::span(&counter, 1))},
           run);
  EXPECT_TRUE(to == expected);
  EXPECT_EQ(done, flagged ? 99u : 7u);
  EXPECT_EQ(counter, 0u);
}

// Pages of numbers, some of them special: any bits at all in one tensor, zeros in another.
void FillWithNumbers(PagedMemory* memory, NumberType type, SeededRandom* random) {
  const KvView& view = memory->view;
  uint32_t number = 0;
  for (const MoveTensor& t : MoveTensors(view, memory->block)) {
    const uint32_t kind = number++ % 4;
    for (int64_t page = 0; page < view.pages; ++page) {
      for (uint32_t head = 0; head < view.kv_heads; ++head) {
        for (uint32_t token = 0; token < view.page_tokens; ++token) {
          for (int64_t i = 0; i < t.row_bytes; i += view.element_bytes) {
            const double value =
                kind == 1 ? 0 : (random->Below(2000001) - 1e6) / (kind == 2 ? 1e7 : 3e5);
            std::byte* const at = RowOf(t, page, head, token) + i;
            if (kind == 3 || random->OneIn(500)) {
              for (uint32_t k = 0; k < view.element_bytes; ++k)
                at[k] = static_cast<std::byte>(random->Next());
            } else {
              StoreNumber(at, type, static_cast<float>(value));
            }
          }
        }
      }
    }
  }
}

void CheckPack(const KernelCase& which, const RunLaunch& run) {
  SeededRandom random(which.seed);
  const KernelFamily family = kKernels[which.kernel].family;
  const bool fp8 = family == KernelFamily::kGatherFp8 || family == KernelFamily::kScatterFp8;
  const bool gather = family == KernelFamily::kGatherFp8 || family == KernelFamily::kGatherInt4;
  const auto type = static_cast<NumberType>(random.Below(3));
  PagedMemory memory(which.layout, which.page_tokens, type == kF32 ? 4 : 2, type == kF32 ? 4 : 2,
                     &random);
  FillWithNumbers(&memory, type, &random);
  PackRequest pack;
  pack.type = type;
  pack.group = fp8 ? 0 : memory.view.k_dim / (random.OneIn(2) ? 1 : 2);
  if (!fp8 && memory.view.v_dim % pack.group != 0) pack.group = 2;
  const auto tensors = fp8 ? Fp8Tensors(memory.view, memory.block)
                           : Int4Tensors(memory.view, memory.block, pack.group);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  MoveCase c(which, &memory, &random, PackedBlockBytes(*tensors, memory.block), *tensors, 1);
  const size_t heads_per_block = tensors->size() * memory.view.kv_heads;
  std::vector<float> scales(2 * heads_per_block, 0.5f), expected_scales = scales;
  if (fp8) c.begin = 0, c.end = memory.block.tokens;
  c.request.token_begin = c.begin, c.request.token_end = c.end;
  pack.move = c.request;
  pack.scales_at = AddressOf(scales.data());
  Bytes pages = memory.bytes, blocks = c.blocks.memory;
  const PackOracle oracle{type, pack.group, memory.view};
  for (int block = 0; block < 2; ++block) {
    std::vector<std::vector<PackedRow>> heads(heads_per_block);
    EachRow(memory, c.IdsOf(block), c.begin, c.end, c.tensors,
            [&](std::byte* row, int64_t at, uint32_t tensor, uint32_t head) {
              heads[tensor * memory.view.kv_heads + head].push_back(
                  {pages.data() + (row - memory.bytes.data()), c.blocks.Of(blocks, block) + at,
                   memory.view.v_dim > 0 && tensor % 2 == 1});
            });
    for (size_t i = 0; i < heads_per_block; ++i) {
      float& scale = expected_scales[block * heads_per_block + i];
      if (fp8 && gather) scale = oracle.GatherFp8(heads[i]);
      if (fp8 && !gather) oracle.ScatterFp8(heads[i], scale);
      if (!fp8 && gather) oracle.GatherInt4(heads[i]);
      if (!fp8 && !gather) oracle.ScatterInt4(heads[i]);
    }
  }
  Memory touched = c.Touched();
  touched.push_back(BytesOf(scales));
  {
    Poisoned poisoned;
    const KvView& view = memory.view;
    c.Poison(&poisoned, [&](size_t i) {
      return static_cast<int64_t>(view.v_dim > 0 && i % 2 == 1 ? view.VRowBytes()
                                                               : view.KRowBytes());
    });
    Launched(PlanPack(family, memory.view, memory.block, pack), which.kernel, touched, run);
  }
  EXPECT_TRUE(memory.bytes == pages) << "pages";
  EXPECT_TRUE(c.blocks.memory == blocks) << "blocks";
  EXPECT_EQ(scales, expected_scales);
}

}  // namespace

void CheckKernel(const KernelCase& which, const RunLaunch& run) {
  SCOPED_TRACE(::testing::Message()
               << kKernels[which.kernel].name << " " << NameOf(which.layout) << ", pages of "
               << which.page_tokens << ", seed " << which.seed);
  switch (kKernels[which.kernel].family) {
    case KernelFamily::kGather:
    case KernelFamily::kScatter:
      return CheckMove(which, run);
    case KernelFamily::kCopyPages:
      return CheckCopyPages(which, run);
    case KernelFamily::kReshapeAndCache:
      return CheckReshape(which, run);
    case KernelFamily::kBatchCopy:
      return CheckBatchCopy(which, run);
    default:
      return CheckPack(which, run);
  }
}

}  // namespace kvarve::testing
