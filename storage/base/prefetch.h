// A prefetch that the compiler keeps. g++ takes a function that only prefetches for one without
// effect and deletes its calls; the empty assembly statement is an effect that costs nothing.
// THREADS: any.
#ifndef KVARVE_STORAGE_BASE_PREFETCH_H_
#define KVARVE_STORAGE_BASE_PREFETCH_H_

namespace kvarve {

inline void PrefetchForRead(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BASE_PREFETCH_H_
