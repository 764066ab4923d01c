// Promotion: blocks that lie on devices come into the host tier, each once, however many ask.
#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <utility>

#include "storage/base/clock.h"
#include "storage/base/status_macros.h"
#include "storage/cache/device_log.h"
#include "storage/cache/device_tier.h"

namespace kvarve {
namespace {

// Read together before the next are looked at: enough to keep a device busy.
constexpr uint64_t kWindowBytes = 64ull << 20;

int64_t Now() { return SystemClock::Get()->NowNanos(); }

// One call of Cache::Load. Goes window by window; what was found so far stays leased (the guards).
// Nobody's end ends it: what it reads is there for the next.
class LoadCall final : public std::enable_shared_from_this<LoadCall> {
 public:
  LoadCall(Cache::Rep* rep, NamespaceHandle ns, std::span<const BlockKey> keys, IoClass io_class,
           bool caller_waits, std::function<void(size_t)> done)
      : r_(*rep),
        keys_(keys.begin(), keys.end()),
        io_class_(io_class),
        waiting_thread_(caller_waits ? std::this_thread::get_id() : std::thread::id()),
        done_(std::move(done)),
        handle_(ns) {}

  // REQUIRES the mutex.
  void Begin() {
    ns_ = r_.Record(handle_);
    window_bytes_ = std::min(kWindowBytes, r_.capacity_bytes / 4);
    bytes_left_ = r_.LeaseBytesMax();  // so much may be pinned by a load
    r_.tier->BeginLoad();
  }

  // Plans and starts windows until one has to be waited for, or all is done. Called without a lock.
  void Run() {
    for (;;) {
      Window window;
      const bool more = Plan(&window);
      if (window.joined == 0) {
        if (more) continue;
        return End();
      }
      ends_ = !more;
      // One more than there are, so that it is not over before all has begun.
      pending_.store(window.joined + 1);
      Read(std::move(window));
      if (pending_.fetch_sub(1) > 1) return;  // the last to land goes on
      if (ends_ || first_missing_ < keys_.size()) return End();
    }
  }

 private:
  struct Lead {
    size_t i = 0;  // of the key
    DeviceIndex::Place place;
    DeviceIndex::Stored stored;
    uint32_t depth = 0;
    SlotRef slot;
    absl::Status status;
  };
  struct Window {
    std::vector<Lead> leads;  // that this call reads; those without a slot only land
    size_t joined = 0;        // flights, leads among them
  };
  struct OfDevice {
    LoadTimes::Reading reading;
    std::vector<size_t> members;  // leads that have a slot
    std::atomic<size_t> left{0};
    int64_t end_nanos = 0;
  };
  struct Reading {
    std::vector<Lead> leads;
    std::map<uint32_t, OfDevice> devices;
    std::atomic<size_t> left{0};
  };

  // Looks at the next keys. False: it ends with what is planned.
  bool Plan(Window* window) {
    MutexLock lock(&r_.mutex);
    if (r_.tier->closing() || !IsCurrent()) return false;
    bool more = true;
    const size_t begin = at_;
    uint64_t bytes = 0;
    for (; at_ < keys_.size() && more; ++at_) {
      if (at_ - begin == kKeysPerHold || bytes >= window_bytes_) break;
      const BlockKey& key = keys_[at_];
      if (Guard(r_.index->Find(ns_.index, key))) continue;
      more = Join(window, key, &bytes);
      if (!more) break;
    }
    Allocate(window);
    return more && at_ < keys_.size();
  }

  // False: the block is nowhere, or there is no place for it.
  bool Join(Window* window, const BlockKey& key, uint64_t* bytes) {
    const EntryId on_device = r_.tier->Find(ns_, key);
    if (on_device == kNoEntry || bytes_left_ < ns_.info.block_bytes) return false;
    const auto joined =
        r_.tier->flights().Join(ns_.info.id, key, /*waiter=*/0,
                                [self = shared_from_this(), i = at_](bool) { self->Landed(i); });
    if (joined == Flights::Joined::kRefused) return false;
    ++window->joined;
    bytes_left_ -= ns_.info.block_bytes;
    *bytes += ns_.info.block_bytes;
    if (joined != Flights::Joined::kLeads) return true;
    DeviceIndex& index = r_.tier->index();
    index.Hit(on_device);
    window->leads.push_back({at_,
                             index.PlaceOf(on_device),
                             index.StoredOf(on_device),
                             index.DepthOf(on_device),
                             {},
                             {}});
    return true;
  }

  void Allocate(Window* window) {
    if (window->leads.empty()) return;
    std::vector<SlotRef> slots;
    // They were asked for, and nobody can read them elsewhere.
    const auto admits = [](size_t, EntryId) { return true; };
    r_.AllocateWithRoom(ns_, window->leads.size(), &slots, admits);
    for (size_t i = 0; i < slots.size(); ++i) window->leads[i].slot = slots[i];
    r_.tier->counted().load_no_room_blocks += window->leads.size() - slots.size();
    ++r_.tier->counted().loads;
  }

  void Read(Window window) {
    const auto reading = std::make_shared<Reading>();
    reading->leads = std::move(window.leads);
    size_t count = 0;
    for (size_t i = 0; i < reading->leads.size(); ++i) {
      if (!reading->leads[i].slot.valid()) continue;
      reading->devices[reading->leads[i].place.device].members.push_back(i);
      ++count;
    }
    if (count == 0) return Publish(reading.get());
    reading->left.store(count);
    for (auto& [number, of_device] : reading->devices) of_device.left = of_device.members.size();
    for (auto& [number, of_device] : reading->devices) {
      auto wanted = std::make_shared<Rung::Reading>();
      wanted->ns = ns_.info.id;
      wanted->layout = ns_.info.layout;
      uint64_t stored_bytes = 0;
      for (const size_t i : of_device.members) {
        const Lead& lead = reading->leads[i];
        wanted->blocks.push_back({lead.place,
                                  lead.stored,
                                  keys_[lead.i],
                                  {r_.arena->Data(lead.slot), ns_.info.block_bytes}});
        stored_bytes += lead.stored.bytes;
      }
      std::shared_ptr<DeviceLog> device;
      {
        MutexLock lock(&r_.mutex);
        device = r_.tier->device(number);
        of_device.reading = r_.tier->load_times().Begin(number, stored_bytes, Now());
      }
      const size_t members = of_device.members.size();
      auto done = [self = shared_from_this(), reading, to = &of_device](
                      size_t of, const absl::Status& status) {
        reading->leads[to->members[of]].status = Unshared(status);
        if (to->left.fetch_sub(1) == 1) to->end_nanos = Now();
        if (reading->left.fetch_sub(1) == 1) self->Publish(reading.get());
      };
      if (device != nullptr) {
        // What goes on in another thread must not hold that up.
        device->Read(std::move(wanted), io_class_, std::move(done),
                     waiting_thread_ == std::this_thread::get_id());
        continue;
      }
      for (size_t i = 0; i < members; ++i) done(i, absl::NotFoundError("removed"));
    }
  }

  // All reads of a window are done: what is good is published in the chain's order, so that each
  // block finds its parent, and then all who wait are told.
  void Publish(Reading* reading) {
    std::vector<bool> loaded(reading->leads.size(), false);
    if (r_.tier->options().bug == PlantedTierBug::kLandsBeforePublished) Land(*reading, loaded);
    {
      MutexLock lock(&r_.mutex);
      for (const auto& [number, of_device] : reading->devices) {
        const bool is_good = std::ranges::all_of(
            of_device.members, [&](size_t i) { return reading->leads[i].status.ok(); });
        r_.tier->load_times().End(of_device.reading, of_device.end_nanos, is_good);
      }
      const bool is_current = IsCurrent();
      for (size_t i = 0; i < reading->leads.size(); ++i) {
        const Lead& lead = reading->leads[i];
        if (!lead.slot.valid()) continue;
        --r_.reserved_slots;
        if (is_current) {
          loaded[i] = PublishOne(lead);
        } else {
          r_.FreeSlot(lead.slot);
        }
      }
    }
    if (r_.tier->options().bug == PlantedTierBug::kLandsBeforePublished) return;
    Land(*reading, loaded);
  }

  // The last of them may go on with the next window, or end.
  void Land(const Reading& reading, const std::vector<bool>& loaded) {
    for (size_t i = 0; i < reading.leads.size(); ++i) {
      r_.tier->flights().Land(ns_.info.id, keys_[reading.leads[i].i], loaded[i]);
    }
  }

  // Whether the block is in the host tier now; what does not need its slot frees it.
  bool PublishOne(const Lead& lead) {
    DeviceTierStats& counted = r_.tier->counted();
    const BlockKey& key = keys_[lead.i];
    const bool is_here = r_.index->Find(ns_.index, key) != kNoEntry;  // a put was first
    std::optional<EntryId> id;
    const PlantedTierBug bug = r_.tier->options().bug;
    if (!lead.status.ok() && bug != PlantedTierBug::kFailedIsPublished) {
      ++counted.load_failed_blocks;
      // Gone or damaged there: nobody shall look for it again.
      r_.tier->Drop(ns_, key, lead.place);
    } else if (!is_here && !r_.arena->IsRetiring(lead.slot)) {
      const BlockKey* parent = lead.i > 0 ? &keys_[lead.i - 1] : nullptr;
      id = r_.InsertBlock(ns_, {.key = key,
                                .parent = parent,
                                .depth = lead.depth,
                                .slot = lead.slot,
                                .checksum = lead.place.checksum,
                                .is_loaded = true});
    }
    if (!id.has_value()) {
      r_.FreeSlot(lead.slot);
      return is_here;
    }
    Guard(*id);
    r_.Tell(CacheEventKind::kTierChanged, r_.index->Get(*id), CacheTier::kHost);
    ++counted.loaded_blocks;
    counted.loaded_bytes += ns_.info.block_bytes;
    return true;
  }

  void Landed(size_t i) {
    {
      MutexLock lock(&r_.mutex);
      // Whoever brought it, what counts is whether it is here.
      if (!Guard(r_.index->Find(ns_.index, keys_[i])) &&
          r_.tier->options().bug != PlantedTierBug::kFailedFlightIsBelieved) {
        first_missing_ = std::min(first_missing_, i);
      }
    }
    if (pending_.fetch_sub(1) > 1) return;
    if (ends_ || first_missing_ < keys_.size()) {
      End();
    } else {
      Run();
    }
  }

  bool IsCurrent() const { return r_.FindRecord(handle_)->epoch == ns_.epoch; }

  bool Guard(EntryId id) {
    if (id == kNoEntry || !r_.index->Lease(id)) return false;
    guards_.push_back(id);
    ++r_.load_guards;
    return true;
  }

  void End() {
    if (done_) done_(std::min(first_missing_, at_));
    done_ = nullptr;
    for (size_t begin = 0; begin < guards_.size(); begin += kKeysPerHold) {
      MutexLock lock(&r_.mutex);
      const size_t end = std::min(begin + kKeysPerHold, guards_.size());
      for (size_t i = begin; i < end; ++i) r_.UnleaseEntry(guards_[i]);
      r_.load_guards -= end - begin;
    }
    guards_.clear();
    MutexLock lock(&r_.mutex);
    r_.tier->EndLoad();
  }

  Cache::Rep& r_;
  const std::vector<BlockKey> keys_;
  const IoClass io_class_;
  const std::thread::id waiting_thread_;  // nobody's: the caller does not wait
  std::function<void(size_t)> done_;
  const NamespaceHandle handle_;
  NamespaceRecord ns_;  // a snapshot, which keeps the namespace open
  uint64_t window_bytes_ = 0;
  uint64_t bytes_left_ = 0;
  size_t at_ = 0;                    // the next key to look at
  size_t first_missing_ = SIZE_MAX;  // of those waited for; under the mutex
  bool ends_ = false;
  std::atomic<size_t> pending_{0};
  std::vector<EntryId> guards_;  // under the mutex
};

}  // namespace

size_t Cache::Rep::FindAnywhere(const NamespaceRecord& ns, std::span<const BlockKey> keys,
                                uint64_t* load_bytes, size_t* in_host) {
  size_t found = index->FindPrefix(ns.index, keys, nullptr);
  *in_host = found;
  if (tier == nullptr) return found;
  const uint64_t block_bytes = std::max<uint64_t>(ns.info.block_bytes, 1);
  while (found < keys.size()) {
    const size_t on_device = std::min<uint64_t>(tier->FindPrefix(ns, keys.subspan(found), nullptr),
                                                *load_bytes / block_bytes);
    if (on_device == 0) break;
    *load_bytes -= on_device * block_bytes;
    found += on_device;
    found += index->FindPrefix(ns.index, keys.subspan(found), nullptr);
  }
  return found;
}

void Cache::Rep::Load(NamespaceHandle ns, std::span<const BlockKey> keys, IoClass io_class,
                      bool caller_waits, std::function<void(size_t)> done) {
  std::shared_ptr<LoadCall> call;
  size_t found = 0;
  {
    MutexLock lock(&mutex);
    if (tier == nullptr) {
      found = index->FindPrefix(Record(ns).index, keys, nullptr);
    } else {
      call = std::make_shared<LoadCall>(this, ns, keys, io_class, caller_waits,
                                        std::exchange(done, nullptr));
      call->Begin();
    }
  }
  if (call != nullptr) return call->Run();
  if (done) done(found);
}

size_t Cache::Rep::LoadNow(NamespaceHandle ns, std::span<const BlockKey> keys, IoClass io_class) {
  struct End {
    Mutex mutex;
    CondVar changed;
    std::optional<size_t> blocks;
  } end;
  Load(ns, keys, io_class, /*caller_waits=*/true, [&end](size_t blocks) {
    MutexLock lock(&end.mutex);
    end.blocks = blocks;
    end.changed.notify_all();
  });
  MutexLock lock(&end.mutex);
  while (!end.blocks.has_value()) end.changed.wait(end.mutex);
  return *end.blocks;
}

bool Cache::has_devices() const { return rep_->has_tier.load(std::memory_order_relaxed); }

bool Cache::prefers_recompute() const { return rep_->prefer_recompute; }

bool Cache::WantsLoad(NamespaceHandle handle, std::span<const BlockKey> keys) {
  for (size_t begin = 0; begin < keys.size(); begin += kKeysPerHold) {
    const auto slice = keys.subspan(begin, std::min(kKeysPerHold, keys.size() - begin));
    MutexLock lock(&rep_->mutex);
    const NamespaceRecord& ns = rep_->Record(handle);
    const size_t here = rep_->index->FindPrefix(ns.index, slice, nullptr);
    if (here < slice.size()) {
      return rep_->tier != nullptr && rep_->tier->Find(ns, slice[here]) != kNoEntry;
    }
  }
  return false;
}

void Cache::Load(NamespaceHandle ns, std::span<const BlockKey> keys, IoClass io_class,
                 std::function<void(size_t)> done) {
  KV_CHECK(keys.size() <= kMaxKeysPerCall);
  rep_->Load(ns, keys, io_class, /*caller_waits=*/false, std::move(done));
}

size_t Cache::LoadNow(NamespaceHandle ns, std::span<const BlockKey> keys, IoClass io_class) {
  KV_CHECK(keys.size() <= kMaxKeysPerCall);
  return rep_->LoadNow(ns, keys, io_class);
}

}  // namespace kvarve
