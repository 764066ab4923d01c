#include "storage/cache/device_memory.h"

#include "storage/base/log.h"

namespace kvarve {

void DeviceMemory::Register(Device* device, std::byte* base, size_t bytes) {
  bool& takes_more = devices_[device];
  if (!takes_more) return;
  const absl::Status status = device->RegisterMemory(base, bytes);
  if (status.ok()) return;
  takes_more = false;  // what it has, it keeps
  if (absl::IsUnimplemented(status)) return;
  KvLog(LogLevel::kInfo, "a device pins memory anew for each read, which costs processor time",
        {{"device", device->info().path}, {"reason", status.ToString()}});
}

void DeviceMemory::Present(std::byte* base, size_t bytes) {
  MutexLock lock(&mutex_);
  pieces_[base] = bytes;
  for (const auto& [device, takes_more] : devices_) Register(device, base, bytes);
}

void DeviceMemory::Gone(std::byte* base, size_t bytes) {
  MutexLock lock(&mutex_);
  auto it = pieces_.lower_bound(base);
  while (it != pieces_.end() && it->first < base + bytes) {
    for (const auto& [device, takes_more] : devices_) device->UnregisterMemory(it->first);
    it = pieces_.erase(it);
  }
}

void DeviceMemory::Add(Device* device) {
  MutexLock lock(&mutex_);
  devices_[device] = true;
  for (const auto& [base, bytes] : pieces_) Register(device, base, bytes);
}

void DeviceMemory::Remove(Device* device) {
  MutexLock lock(&mutex_);
  devices_.erase(device);
}

}  // namespace kvarve
