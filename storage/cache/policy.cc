// What the policy is told of requests and blocks, and what it has learned from that.
#include "storage/cache/cache_rep.h"

namespace kvarve {

// Requests that go side by side are told in turns. That costs nothing: which of its blocks a
// request has touched is kept here (TouchTable).
void Cache::Rep::BeginRequest(NamespaceIndex ns, uint64_t request_id) {
  const uint64_t tag = request_id == 0 ? 0 : TouchTable::Tag(ns, request_id);
  if (tag != 0 && tag == policy_request) return;
  policy_request = tag;
  policy->OnRequest({});
}

BlockTraits Cache::Rep::TraitsOf(const NamespaceRecord& ns, const BlockKey& key, uint32_t depth,
                                 EntryId parent, uint32_t recompute_us) const {
  BlockTraits traits;
  traits.depth = depth;
  traits.bytes = ns.info.block_bytes;
  traits.recompute_us = recompute_us != 0 ? recompute_us : ns.recompute_us;
  traits.group = ns.group;
  // Of a namespace that was emptied the blocks are others: they have another index.
  traits.key = TouchTable::Tag(ns.index, key.Word(0));
  traits.parent = parent;
  return traits;
}

void Cache::Rep::TellRead(NamespaceHandle ns, uint64_t request_id, std::span<const BlockKey> keys) {
  if (!on_access || keys.empty()) return;
  NamespaceId id;
  BlockKey parent;
  bool has_parent = false;
  uint32_t depth = 0;
  {
    MutexLock lock(&mutex);
    const NamespaceRecord& record = Record(ns);
    id = record.info.id;
    if (const EntryId first = index->Find(record.index, keys.front()); first != kNoEntry) {
      depth = static_cast<uint32_t>(index->Get(first).depth);
      const EntryId linked = index->LinkedParent(first);
      has_parent = linked != kNoEntry;
      if (has_parent) parent = index->Get(linked).key;
    }
  }
  on_access({id, request_id, has_parent ? &parent : nullptr, depth, keys});
}

void Cache::Rep::TellPut(const PutRequest& request) {
  if (!on_access || request.keys.empty()) return;
  NamespaceId id;
  {
    MutexLock lock(&mutex);
    id = Record(request.ns).info.id;
  }
  on_access({id, request.request_id, request.parent ? &*request.parent : nullptr,
             request.first_depth, request.keys});
}

std::string Cache::SavePolicy() const {
  MutexLock lock(&rep_->mutex);
  return rep_->policy->Save();
}

bool Cache::LoadPolicy(std::string_view saved) {
  MutexLock lock(&rep_->mutex);
  return rep_->policy->Load(saved);
}

}  // namespace kvarve
