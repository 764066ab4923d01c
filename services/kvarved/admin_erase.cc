#include "services/kvarved/admin_erase.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "client/identity/identity.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

using Json = nlohmann::ordered_json;

absl::Status CheckFields(const Json& request) {
  const bool has_ns = request.contains("ns"), has_tenant = request.contains("tenant");
  if (request.size() != 2 || has_ns == has_tenant ||
      !request[has_ns ? "ns" : "tenant"].is_string()) {
    return absl::InvalidArgumentError(
        "exactly one of \"ns\" and \"tenant\" must be given, as a text");
  }
  return absl::OkStatus();
}

absl::StatusOr<NamespaceId> IdOfHex(const std::string& hex) {
  KV_ASSIGN_OR_RETURN(const std::string bytes, FromHex(hex));
  NamespaceId id;
  if (bytes.size() != id.bytes.size()) {
    return absl::InvalidArgumentError("\"ns\" must have 32 hexadecimal digits");
  }
  std::copy(bytes.begin(), bytes.end(), id.bytes.begin());
  return id;
}

bool IsRecovering(const Cache& cache) {
  const CacheStats stats = cache.Stats();
  return stats.devices.has_value() &&
         std::ranges::any_of(stats.devices->devices, [](const DeviceStats& device) {
           return device.state == DeviceState::kRecovering;
         });
}

}  // namespace

absl::StatusOr<Json> EraseOnRequest(const Json& request, Cache* cache, uid_t uid) {
  KV_RETURN_IF_ERROR(CheckFields(request));
  std::vector<NamespaceId> ids;
  uint64_t unknown = 0;  // namespaces on devices of which nobody knows whose they are
  if (request.contains("ns")) {
    KV_ASSIGN_OR_RETURN(ids.emplace_back(), IdOfHex(request["ns"].get<std::string>()));
  } else {
    const std::string tenant = request["tenant"].get<std::string>();
    if (IsRecovering(*cache)) {
      return absl::UnavailableError(
          "devices are being recovered: try again when `kvarve status` says that they are ready");
    }
    for (const StoredNamespace& of : cache->StoredNamespaces()) {
      if (of.tenant == tenant) ids.push_back(of.id);
      unknown += of.tenant.empty() ? 1 : 0;
    }
    if (ids.empty()) {
      return absl::NotFoundError(absl::StrFormat(
          "this tenant has no namespaces here; of %d on devices it is not known whose they are",
          unknown));
    }
  }
  uint64_t removed = 0;
  for (const NamespaceId& id : ids) {
    KV_ASSIGN_OR_RETURN(const uint64_t blocks, cache->Erase(id));
    removed += blocks;
  }
  KvLog(LogLevel::kInfo, "erased",
        {{"uid", absl::StrFormat("%d", uid)},
         {"namespaces", absl::StrFormat("%d", ids.size())},
         {"blocks", absl::StrFormat("%d", removed)}});
  return Json{{"namespaces", ids.size()},
              {"removed_blocks", removed},
              {"namespaces_of_unknown_tenant", unknown}};
}

}  // namespace kvarve
