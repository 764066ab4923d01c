// Administration: everything of a namespace or of a tenant goes, in memory and on devices, whether
// a client has it open or not.
// THREADS: any.  BLOCKS: until that is durable on each device.
#ifndef KVARVE_SERVICES_KVARVED_ADMIN_ERASE_H_
#define KVARVE_SERVICES_KVARVED_ADMIN_ERASE_H_

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "storage/cache/cache.h"

namespace kvarve {

// `request`: {"op": "erase", "ns": 32 hexadecimal digits} or {"op": "erase", "tenant": name}.
// A namespace that nobody knows is erased all the same: a device may have what cannot be read now.
// InvalidArgument. NotFound: the tenant has no namespaces here. Unavailable: devices are being
// recovered, so that it cannot be said what a tenant has; or one could not be written to, and
// blocks may come back with the next start.
absl::StatusOr<nlohmann::ordered_json> EraseOnRequest(const nlohmann::ordered_json& request,
                                                      Cache* cache, uid_t uid);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_KVARVED_ADMIN_ERASE_H_
