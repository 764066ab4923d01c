// Shared memory that the daemon makes and a client maps too, of a size that nobody can change: a
// file that shrinks would end whoever touches it with SIGBUS.
//
// THREADS: any.  BLOCKS: on mmap.
#ifndef KVARVE_CLIENT_LOCAL_SEALED_MEMORY_H_
#define KVARVE_CLIENT_LOCAL_SEALED_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace kvarve::local {

// Makes and maps `bytes`, zeroed, not in forked children and not in core dumps; `fd` gets the
// descriptor. The caller unmaps. Unavailable: the system has none.
absl::StatusOr<void*> MakeSealedMemory(const char* name, uint64_t bytes, UniqueFd* fd);
// Maps the first `bytes` of such memory, to read and write. InvalidArgument: shorter, or it could
// shrink; ResourceExhausted: no address space.
absl::StatusOr<void*> MapSealedMemory(int fd, uint64_t bytes);
// `fd` has at least `bytes` and cannot shrink.
bool IsSealedMemory(int fd, uint64_t bytes);

}  // namespace kvarve::local

#endif  // KVARVE_CLIENT_LOCAL_SEALED_MEMORY_H_
