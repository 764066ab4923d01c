#include "storage/io/io_queue.h"

#include <algorithm>
#include <utility>

#include "storage/base/status_macros.h"

namespace kvarve {

void IoQueue::Push(Item item) {
  KV_CHECK(!full());
  PerClass& of = classes_[static_cast<int>(item.request.io_class)];
  if (of.waiting.empty()) of.clock = std::max(of.clock, now_);
  of.waiting_bytes += item.bytes;
  of.waiting.push_back(std::move(item));
  ++waiting_;
}

bool IoQueue::MayStart(const PerClass& of, uint64_t class_max) const {
  if (of.waiting.empty()) return false;
  const uint64_t bytes = of.waiting.front().bytes;
  const bool class_room = of.inflight == 0 || of.inflight_bytes + bytes <= class_max;
  const bool room = inflight_ == 0 || inflight_bytes_ + bytes <= options_.inflight_bytes_max;
  return class_room && room;
}

std::optional<IoQueue::Item> IoQueue::Pop() {
  if (inflight_ >= options_.inflight_max) return std::nullopt;
  PerClass* next = nullptr;
  uint32_t weight = 1;
  for (int i = 0; i < kIoClasses; ++i) {
    PerClass& of = classes_[i];
    if (!MayStart(of, options_.class_bytes_max[i])) continue;
    if (next != nullptr && of.clock >= next->clock) continue;  // ties: the more urgent
    next = &of;
    weight = options_.weights[i];
  }
  if (next == nullptr) return std::nullopt;
  Item item = std::move(next->waiting.front());
  next->waiting.pop_front();
  now_ = std::max(now_, next->clock);
  next->clock += std::max(item.bytes, kIoUnit) / weight;  // a sync costs as much as a page
  next->waiting_bytes -= item.bytes;
  next->inflight_bytes += item.bytes;
  ++next->inflight;
  inflight_bytes_ += item.bytes;
  --waiting_;
  ++inflight_;
  return item;
}

void IoQueue::Finished(IoClass io_class, uint64_t bytes) {
  PerClass& of = classes_[static_cast<int>(io_class)];
  KV_CHECK(of.inflight > 0 && of.inflight_bytes >= bytes);
  --of.inflight;
  of.inflight_bytes -= bytes;
  --inflight_;
  inflight_bytes_ -= bytes;
}

}  // namespace kvarve
