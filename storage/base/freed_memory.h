// What the allocator does with memory that is freed.
#ifndef KVARVE_STORAGE_BASE_FREED_MEMORY_H_
#define KVARVE_STORAGE_BASE_FREED_MEMORY_H_

namespace kvarve {

// From now on (unless some heap has 16 MiB free already) glibc's malloc takes blocks of up to 16
// MiB from its heaps and keeps up to 32 MiB of free memory at the end of each, instead of 128 KiB
// of both: as it does by itself in any process that once freed a block of that size (mallopt(3),
// M_MMAP_THRESHOLD). gRPC allocates memory for each read of a socket and frees it soon after. Given
// back to the kernel every time, its pages are cleared and mapped anew for the next read, which was
// seen to take two thirds of a transfer's time, and more of the receiver's. (8 and 16 MiB are too
// little for a put of 64 MiB.)
//
// The price: a thread that once had much in its heap keeps up to 32 MiB of it. Thresholds that are
// set otherwise (mallopt, MALLOC_TRIM_THRESHOLD_, GLIBC_TUNABLES) stay as they are, and so does an
// allocator that is not glibc's. THREADS: any.
void KeepFreedMemory();

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BASE_FREED_MEMORY_H_
