// What the erases of a device took away, for an owner that is told of segments from the newest on.
//
// An erase takes away all records of its namespace, or of its namespace and key, that have a
// smaller seq. It lies in no older segment than any of them.
//
// THREADS: one owner.
#ifndef KVARVE_STORAGE_SEGMENT_ERASED_SEQS_H_
#define KVARVE_STORAGE_SEGMENT_ERASED_SEQS_H_

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "storage/segment/format.h"

namespace kvarve {

class ErasedSeqs {
 public:
  // Learns the table's erases; which of its records are blocks that still count.
  std::vector<bool> Living(const SegmentTable& table);

 private:
  using Name = std::pair<NamespaceId, std::array<uint8_t, BlockKey::kMaxBytes>>;
  std::map<NamespaceId, uint64_t> namespaces_;
  std::map<Name, uint64_t> keys_;
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_SEGMENT_ERASED_SEQS_H_
