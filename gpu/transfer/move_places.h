// The places that moves have in a Transfer: each is somebody's until the work in it is done, be it
// that whoever has it says so, or that somebody else who wants one finds its last event done. What
// nobody looks after (a save that waits for a slow daemon) keeps no place.
//
// THREADS: any.  BLOCKS: AwaitRoom.
#ifndef KVARVE_GPU_TRANSFER_MOVE_PLACES_H_
#define KVARVE_GPU_TRANSFER_MOVE_PLACES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/device/device.h"
#include "storage/base/mutex.h"

namespace kvarve {

class MovePlaces {
 public:
  struct Place {
    size_t number = 0;
    uint64_t ticket = 0;  // no two uses of a place have the same; 0: none
  };
  explicit MovePlaces(size_t count);

  std::optional<Place> Take();
  // All of the place's work is asked for; it is done when `last` is.
  void Queued(const Place& place, std::shared_ptr<DeviceEvent> last);
  // REQUIRES: nothing of its work moves any more. Again, or of none: nothing.
  void Release(const Place& place);
  // Until Take may find one: for the oldest work under way.
  void AwaitRoom();
  size_t taken() const;

 private:
  struct Use {
    uint64_t ticket = 0;
    std::shared_ptr<DeviceEvent> last;  // null: not all of it is asked for
  };
  using Work = std::pair<Place, std::shared_ptr<DeviceEvent>>;
  std::vector<Work> Queue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // the oldest first
  mutable Mutex mutex_;
  CondVar changed_;
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<Use> uses_ ABSL_GUARDED_BY(mutex_);
  std::vector<size_t> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvarve

#endif  // KVARVE_GPU_TRANSFER_MOVE_PLACES_H_
