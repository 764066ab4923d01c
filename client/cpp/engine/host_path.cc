#include "client/cpp/engine/host_path.h"

namespace kvarve {

void DeviceMemoryObserver::OnMapped(std::span<std::byte> memory, Kind kind) {
  switch (kind) {
    case Kind::kStaging:
      registry_->Add(memory, HostRegistry::Use::kReadWrite);
      break;
    case Kind::kWritableChunk:
      has_writable_.store(true);
      registry_->Add(memory, HostRegistry::Use::kProtect);
      break;
    case Kind::kChunk:
      if (device_.read_only_registration) registry_->Add(memory, HostRegistry::Use::kReadOnly);
      break;
  }
}

}  // namespace kvarve
