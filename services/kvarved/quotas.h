// Quotas as people write them: "RESOURCE:FLOOR..CEILING", several with spaces between.
//   host_bytes:4GiB..16GiB entries:..1000000 ingest_bytes_per_second:..500MiB
// A floor or ceiling that is left out is none. THREADS: any.
#ifndef KVARVE_SERVICES_KVARVED_QUOTAS_H_
#define KVARVE_SERVICES_KVARVED_QUOTAS_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "storage/cache/quota.h"

namespace kvarve {

// InvalidArgument: an unknown or repeated resource, no range, a number that is none, a floor above
// its ceiling. Says what is expected.
absl::StatusOr<TenantQuota> ParseQuota(std::string_view text);
// "team-a=host_bytes:..1GiB": the last "=" ends the name.
absl::StatusOr<std::pair<std::string, TenantQuota>> ParseTenantQuota(std::string_view text);
// What ParseQuota takes; empty when nothing is limited.
std::string QuotaText(const TenantQuota& quota);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_KVARVED_QUOTAS_H_
