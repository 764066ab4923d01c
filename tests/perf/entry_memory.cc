#include "tests/perf/entry_memory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "storage/arena/arena.h"
#include "storage/base/unique_fd.h"
#include "storage/index/index.h"
#include "storage/policy/eviction_policy.h"
#include "storage/testing/block_generator.h"

namespace kvarve::perf {
namespace {

uint64_t RssAnonBytes() {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return 0;
  char line[256];
  unsigned long kib = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "RssAnon: %lu kB", &kib) == 1) break;
  }
  std::fclose(file);
  return uint64_t{kib} * 1024;
}

absl::StatusOr<EntryMemory> Fill(uint64_t begin, uint64_t end, uint64_t step) {
  const uint64_t before = RssAnonBytes();
  Index index(12345, end);
  const auto policy = NewLruPolicy();
  ArenaOptions options;
  options.capacity_bytes = end * kSlotUnitBytes + (1ull << 30);
  options.huge_pages = false;
  options.prefault =
      false;  // the slots' own memory is never touched, and is no private memory anyway
  auto arena = Arena::Create(options);
  if (!arena.ok()) return arena.status();
  const PoolId pool = (*arena)->AddPool("memory");

  EntryMemory result;
  std::vector<SlotRef> slots;
  for (uint64_t n = 0; n < end; ++n) {
    slots.clear();
    if ((*arena)->Allocate(pool, kSlotUnitBytes, 1, &slots) != 1)
      return absl::InternalError("arena is full");
    const auto id = index.Insert(0, testing::KeyOf(n), nullptr, 0, slots[0].packed, n);
    if (!id.ok()) return id.status();
    (*arena)->SetOwner(slots[0], *id);
    policy->OnInsert(*id, BlockTraits{}, true);
    if (n + 1 < begin || (n + 1) % step != 0) continue;
    const double bytes = static_cast<double>(RssAnonBytes() - before) / static_cast<double>(n + 1);
    if (bytes > result.worst_bytes_an_entry) result = {bytes, n + 1};
  }
  return result;
}

}  // namespace

absl::StatusOr<EntryMemory> MeasureEntryMemory(uint64_t begin, uint64_t end, uint64_t step) {
  int fds[2];
  if (::pipe(fds) != 0) return absl::InternalError("no pipe");
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  const pid_t child = ::fork();
  if (child < 0) return absl::InternalError("no child");
  if (child == 0) {
    const absl::StatusOr<EntryMemory> result = Fill(begin, end, step);
    if (!result.ok()) std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    const bool sent = result.ok() && ::write(write_end.get(), &*result, sizeof(EntryMemory)) ==
                                         sizeof(EntryMemory);
    ::_exit(sent ? 0 : 1);
  }
  write_end.reset();
  EntryMemory result;
  const bool received = ::read(read_end.get(), &result, sizeof(result)) == sizeof(result);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!received || status != 0) return absl::InternalError("the child that measures failed");
  return result;
}

}  // namespace kvarve::perf
