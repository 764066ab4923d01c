#include "gpu/transfer/move_places.h"

#include <algorithm>

namespace kvarve {

MovePlaces::MovePlaces(size_t count) {
  MutexLock lock(&mutex_);
  uses_.resize(count);
  for (size_t i = count; i > 0; --i) free_.push_back(i - 1);
}

std::vector<MovePlaces::Work> MovePlaces::Queue() const {
  std::vector<Work> queue;
  for (size_t i = 0; i < uses_.size(); ++i) {
    if (uses_[i].last != nullptr) queue.push_back({{i, uses_[i].ticket}, uses_[i].last});
  }
  std::sort(queue.begin(), queue.end(),
            [](const Work& a, const Work& b) { return a.first.ticket < b.first.ticket; });
  return queue;
}

std::optional<MovePlaces::Place> MovePlaces::Take() {
  for (bool looked = false;; looked = true) {
    std::vector<Work> queue;
    {
      MutexLock lock(&mutex_);
      if (!free_.empty()) {
        const Place place{free_.back(), next_ticket_++};
        free_.pop_back();
        uses_[place.number].ticket = place.ticket;
        return place;
      }
      if (looked) return std::nullopt;
      queue = Queue();
    }
    // An event that fails has nothing behind it that moves.
    for (const auto& [place, last] : queue) {
      const absl::StatusOr<bool> done = last->Done();
      if (!done.ok() || *done) Release(place);
    }
  }
}

void MovePlaces::Queued(const Place& place, std::shared_ptr<DeviceEvent> last) {
  MutexLock lock(&mutex_);
  uses_[place.number].last = std::move(last);
  changed_.notify_all();
}

void MovePlaces::Release(const Place& place) {
  std::shared_ptr<DeviceEvent> last;  // ends outside the lock
  MutexLock lock(&mutex_);
  Use& use = uses_[place.number];
  if (place.ticket == 0 || use.ticket != place.ticket) return;
  use.ticket = 0;
  last.swap(use.last);
  free_.push_back(place.number);
  changed_.notify_all();
}

void MovePlaces::AwaitRoom() {
  for (;;) {
    Work oldest;
    {
      MutexLock lock(&mutex_);
      if (!free_.empty()) return;
      std::vector<Work> queue = Queue();
      if (queue.empty()) {
        changed_.wait(mutex_);
        continue;
      }
      oldest = std::move(queue.front());
    }
    oldest.second->Wait().IgnoreError();  // as in Take
    Release(oldest.first);
  }
}

size_t MovePlaces::taken() const {
  MutexLock lock(&mutex_);
  return uses_.size() - free_.size();
}

}  // namespace kvarve
