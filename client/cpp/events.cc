#include "client/cpp/events.h"

namespace kvarve {

std::string_view EventKindName(EventKind kind) {
  switch (kind) {
    case EventKind::kStored:
      return "stored";
    case EventKind::kRemoved:
      return "removed";
    case EventKind::kTierChanged:
      return "tier_changed";
    case EventKind::kCleared:
      return "cleared";
    case EventKind::kUnknown:
      break;
  }
  return "unknown";
}

std::string_view BlockTierName(BlockTier tier) {
  switch (tier) {
    case BlockTier::kHost:
      return "host";
    case BlockTier::kNvme:
      return "nvme";
    case BlockTier::kNone:
      break;
  }
  return "";
}

}  // namespace kvarve
