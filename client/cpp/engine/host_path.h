// How blocks come to an engine's device: what the Client maps is registered there, as the device
// and the daemon allow (gpu/transfer/host_registry.h), and path() says which way that is.
//
// THREADS: any.  BLOCKS: OnUnmapping.
#ifndef KVARVE_CLIENT_CPP_ENGINE_HOST_PATH_H_
#define KVARVE_CLIENT_CPP_ENGINE_HOST_PATH_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "client/cpp/host_memory.h"
#include "gpu/transfer/host_registry.h"

namespace kvarve {

class DeviceMemoryObserver final : public HostMemoryObserver {
 public:
  DeviceMemoryObserver(const ComputeDeviceInfo& device, std::shared_ptr<HostRegistry> registry)
      : device_(device), registry_(std::move(registry)) {}
  void OnMapped(std::span<std::byte> memory, Kind kind) override;
  void OnUnmapping(std::byte* memory) override { registry_->Remove(memory); }
  bool WantsWritableChunks() const override {
    return ChooseHostPath(device_, true) == HostPath::kWritable;
  }
  // So far: kWritable as soon as the daemon has shown such memory.
  HostPath path() const { return ChooseHostPath(device_, has_writable_.load()); }
  HostRegistry& registry() const { return *registry_; }

 private:
  const ComputeDeviceInfo device_;
  const std::shared_ptr<HostRegistry> registry_;
  std::atomic<bool> has_writable_{false};
};

}  // namespace kvarve

#endif  // KVARVE_CLIENT_CPP_ENGINE_HOST_PATH_H_
