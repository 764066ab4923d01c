// What the status page shows, as one JSON object (docs/operations.md): the answers of `kvarve
// status`, `stats` and `tenants`, the last hour, the latest slow requests, the configuration.
// THREADS: any.  BLOCKS: never.
#ifndef KVARVE_SERVICES_KVARVED_STATUS_JSON_H_
#define KVARVE_SERVICES_KVARVED_STATUS_JSON_H_

#include <string>
#include <vector>

#include "services/kvarved/admin.h"
#include "services/kvarved/status_history.h"

namespace kvarve {

std::string StatusPageJson(Admin* admin, const StatusHistory& history, const SlowRequests& slow,
                           const std::vector<SettingShown>& settings);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_KVARVED_STATUS_JSON_H_
