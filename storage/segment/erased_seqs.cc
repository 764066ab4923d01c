#include "storage/segment/erased_seqs.h"

#include <algorithm>

namespace kvarve {

std::vector<bool> ErasedSeqs::Living(const SegmentTable& table) {
  for (const BlockRecord& record : table.records) {
    if (!record.is_erase()) continue;
    const NamespaceId& ns = table.namespaces[record.ns_ref];
    uint64_t& seq = record.is_erase_of_key() ? keys_[{ns, record.key.bytes}] : namespaces_[ns];
    seq = std::max(seq, record.seq);
  }
  std::vector<uint64_t> until;
  for (const NamespaceId& ns : table.namespaces) {
    const auto it = namespaces_.find(ns);
    until.push_back(it != namespaces_.end() ? it->second : 0);
  }
  std::vector<bool> living(table.records.size(), true);
  for (size_t i = 0; i < living.size(); ++i) {
    const BlockRecord& record = table.records[i];
    living[i] = !record.is_erase() && record.seq >= until[record.ns_ref];
    if (!living[i] || keys_.empty()) continue;
    const auto it = keys_.find({table.namespaces[record.ns_ref], record.key.bytes});
    living[i] = it == keys_.end() || record.seq >= it->second;
  }
  return living;
}

}  // namespace kvarve
