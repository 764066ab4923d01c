#include "storage/cache/families.h"

#include <utility>

#include "storage/base/status_macros.h"

namespace kvarve {

void Families::Add(EntryId id) {
  if (id >= links_.size()) links_.Resize(id + size_t{1});
}

void Families::SetParent(EntryId id, EntryId parent) { Splice(&links_[parent].child, id + 1); }

void Families::SetParent(EntryId id, const Name& parent, uint32_t group, Parent where) {
  Family* const family = FamilyOf(parent, group);
  family->is_gone = where == Parent::kGone;
  SpliceToFamily(family, id + 1);
}

bool Families::Adopt(EntryId id, const Name& name) {
  if (families_.empty()) return false;
  const auto it = families_.find(name);
  if (it == families_.end()) return false;
  Family* const family = it->second.get();
  KV_CHECK(family->adopter == kNone);
  if (family->ring == kNone && family->aside == 0) return false;
  family->adopter = id + 1;
  adopted_[id] = family;
  Note(family);
  return true;
}

EntryId Families::Remove(EntryId id, EntryId linked_parent, const Name& name, uint32_t group,
                         Parent where) {
  const EntryId left = TakeOut(id, linked_parent);
  const EntryId children = std::exchange(links_[id].child, kNone);
  const auto adopted = adopted_.find(id);
  if (children == kNone && adopted == adopted_.end()) return left;
  Family* const family = adopted != adopted_.end() ? adopted->second : FamilyOf(name, group);
  if (adopted != adopted_.end()) adopted_.erase(adopted);
  family->adopter = kNone;
  family->is_gone = where == Parent::kGone;
  if (children != kNone) SpliceToFamily(family, children);
  Note(family);
  return left;
}

EntryId Families::Remove(EntryId id, EntryId linked_parent) {
  const EntryId left = TakeOut(id, linked_parent);
  links_[id].child = kNone;
  if (const auto adopted = adopted_.find(id); adopted != adopted_.end()) {
    Family* const family = adopted->second;
    adopted_.erase(adopted);
    family->adopter = kNone;
    family->is_gone = true;
    Note(family);
  }
  return left;
}

void Families::ParentGone(const Name& parent) {
  if (families_.empty()) return;
  const auto it = families_.find(parent);
  if (it == families_.end()) return;
  it->second->is_gone = true;
  Note(it->second.get());
}

EntryId Families::Dead(uint32_t group) const {
  const auto it = dead_.lower_bound({group, 0});
  return it == dead_.end() || it->first.first != group ? kNoEntry : it->second->ring - 1;
}

// REQUIRES: it is what Dead gave.
void Families::SetAside(EntryId id) {
  Family* const family = ring_of_.at(id);
  ++family->aside;  // so that the family stays
  TakeOut(id, kNoEntry);
  aside_[id] = family;
}

void Families::TakeBack(EntryId id) {
  const auto it = aside_.find(id);
  if (it == aside_.end()) return;
  Family* const family = it->second;
  aside_.erase(it);
  --family->aside;
  SpliceToFamily(family, id + 1);
}

bool Families::Expect(const Name& parent, bool is_expected) {
  if (families_.empty()) return false;
  const auto it = families_.find(parent);
  if (it == families_.end()) return false;
  it->second->expected += is_expected ? 1 : -1;
  EndIfEmpty(it->second.get());
  return true;
}

uint64_t Families::MemoryBytes() const {
  return links_.MemoryBytes() + families_.size() * (sizeof(Family) + sizeof(Name));
}

Families::Family* Families::FamilyOf(const Name& parent, uint32_t group) {
  std::unique_ptr<Family>& family = families_[parent];
  if (family == nullptr) {
    family = std::make_unique<Family>();
    family->parent = parent;
    family->group = group;
    family->number = ++next_number_;
  }
  // One that only expects may be of a namespace whose index is another's now.
  if (family->ring == kNone && family->aside == 0) family->group = group;
  return family.get();
}

void Families::Splice(EntryId* ring, EntryId other) {
  if (At(other).next == kNone) At(other).next = At(other).prev = other;
  if (*ring == kNone) {
    *ring = other;
    return;
  }
  const EntryId before = At(*ring).prev, last = At(other).prev;
  At(before).next = other;
  At(other).prev = before;
  At(last).next = *ring;
  At(*ring).prev = last;
}

void Families::SpliceToFamily(Family* family, EntryId other) {
  if (family->ring == kNone) ring_of_[other - 1] = family;
  Splice(&family->ring, other);
  Note(family);
}

EntryId Families::TakeOut(EntryId id, EntryId linked_parent) {
  if (const auto it = aside_.find(id); it != aside_.end()) {
    Family* const family = it->second;
    aside_.erase(it);
    --family->aside;
    return EndIfEmpty(family);
  }
  Links& links = links_[id];
  if (links.next == kNone) return kNoEntry;  // in no ring
  const EntryId other = links.next == id + 1 ? kNone : links.next;
  At(links.prev).next = links.next;
  At(links.next).prev = links.prev;
  links.next = links.prev = kNone;
  if (linked_parent != kNoEntry) {
    if (links_[linked_parent].child == id + 1) links_[linked_parent].child = other;
    return kNoEntry;
  }
  const auto it = ring_of_.find(id);
  if (it == ring_of_.end()) return kNoEntry;
  Family* const family = it->second;
  ring_of_.erase(it);
  family->ring = other;
  if (other != kNone) ring_of_[other - 1] = family;
  return EndIfEmpty(family);
}

EntryId Families::EndIfEmpty(Family* family) {
  Note(family);
  if (family->ring != kNone || family->aside > 0) return kNoEntry;
  EntryId adopter = kNoEntry;
  if (family->adopter != kNone) {
    adopter = std::exchange(family->adopter, kNone) - 1;
    adopted_.erase(adopter);
  }
  if (family->expected == 0) families_.erase(Name(family->parent));
  return adopter;
}

void Families::Note(Family* family) {
  const bool is_dead =
      family->is_gone && family->adopter == kNone && family->expected == 0 && family->ring != kNone;
  if (is_dead) {
    dead_[{family->group, family->number}] = family;
  } else {
    dead_.erase({family->group, family->number});
  }
}

}  // namespace kvarve
