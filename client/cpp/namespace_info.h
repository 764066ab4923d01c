// A namespace as the daemon opened it for this client. THREADS: any; a value.
#ifndef KVARVE_CLIENT_CPP_NAMESPACE_INFO_H_
#define KVARVE_CLIENT_CPP_NAMESPACE_INFO_H_

#include <cstdint>

#include "storage/block/namespace.h"

namespace kvarve::client {

struct OpenNamespaceInfo {
  uint32_t handle = 0;  // of the connection; the same-host plane's only
  uint32_t key_bytes = 0;
  uint64_t block_bytes = 0;
  NamespaceId id;
};

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_CPP_NAMESPACE_INFO_H_
