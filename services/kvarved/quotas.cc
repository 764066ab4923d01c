#include "services/kvarved/quotas.h"

#include <charconv>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/identity/identity.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

constexpr char kExample[] = "an example: host_bytes:4GiB..16GiB entries:..1000000";

bool IsCount(Resource resource) {
  return resource == Resource::kEntries || resource == Resource::kConnections;
}

absl::StatusOr<uint64_t> ParseAmount(Resource resource, std::string_view text) {
  if (!IsCount(resource)) return ParseBytes(text);
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error == std::errc() && end == text.data() + text.size()) return count;
  return absl::InvalidArgumentError(absl::StrFormat("\"%s\" is no number", text));
}

absl::StatusOr<Resource> ParseResource(std::string_view name) {
  std::string known;
  for (size_t i = 0; i < kResources; ++i) {
    const auto resource = static_cast<Resource>(i);
    if (ResourceName(resource) == name) return resource;
    known += (i == 0 ? "" : ", ") + std::string(ResourceName(resource));
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("\"%s\" is no resource; known: %s", name.substr(0, 32), known));
}

absl::StatusOr<QuotaRange> ParseRange(Resource resource, std::string_view text) {
  const size_t dots = text.find("..");
  if (dots == text.npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\" is no range FLOOR..CEILING; %s", text, kExample));
  }
  QuotaRange range;
  const std::string_view floor = text.substr(0, dots), ceiling = text.substr(dots + 2);
  if (!floor.empty()) {
    KV_ASSIGN_OR_RETURN(range.floor, ParseAmount(resource, floor));
  }
  if (!ceiling.empty()) {
    KV_ASSIGN_OR_RETURN(range.ceiling, ParseAmount(resource, ceiling));
  }
  if (resource == Resource::kDeviceBytes && range.floor > 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\": device_bytes has a ceiling only", text));
  }
  if (range.floor > range.ceiling) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\": the floor is above the ceiling", text));
  }
  return range;
}

std::string AmountText(Resource resource, uint64_t amount) {
  if (!IsCount(resource)) {
    for (const auto& [unit, name] : {std::pair(kGiB, "GiB"), std::pair(kMiB, "MiB")}) {
      if (amount != 0 && amount % unit == 0) return absl::StrFormat("%d%s", amount / unit, name);
    }
  }
  return absl::StrFormat("%d", amount);
}

}  // namespace

absl::StatusOr<TenantQuota> ParseQuota(std::string_view text) {
  TenantQuota quota;
  unsigned seen = 0;
  while (true) {
    const size_t begin = text.find_first_not_of(' ');
    if (begin == text.npos) break;
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(word.size());
    const size_t colon = word.find(':');
    if (colon == word.npos) {
      return absl::InvalidArgumentError(absl::StrFormat("\"%s\" is no RESOURCE:FLOOR..CEILING; %s",
                                                        word.substr(0, 64), kExample));
    }
    KV_ASSIGN_OR_RETURN(const Resource resource, ParseResource(word.substr(0, colon)));
    if ((seen >> static_cast<unsigned>(resource) & 1) != 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is given twice", ResourceName(resource)));
    }
    seen |= 1u << static_cast<unsigned>(resource);
    KV_ASSIGN_OR_RETURN(quota.of(resource), ParseRange(resource, word.substr(colon + 1)));
  }
  return quota;
}

absl::StatusOr<std::pair<std::string, TenantQuota>> ParseTenantQuota(std::string_view text) {
  const size_t equals = text.rfind('=');
  if (equals == text.npos) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" is no TENANT=QUOTA; an example: team-a=host_bytes:4GiB..16GiB", text));
  }
  std::string tenant(text.substr(0, equals));
  KV_RETURN_IF_ERROR(CheckTenantName(tenant));
  KV_ASSIGN_OR_RETURN(TenantQuota quota, ParseQuota(text.substr(equals + 1)));
  return std::pair(std::move(tenant), quota);
}

std::string QuotaText(const TenantQuota& quota) {
  std::string text;
  for (size_t i = 0; i < kResources; ++i) {
    const auto resource = static_cast<Resource>(i);
    const QuotaRange& range = quota.of(resource);
    if (range == QuotaRange()) continue;
    text += (text.empty() ? "" : " ") + std::string(ResourceName(resource)) + ":";
    if (range.floor > 0) text += AmountText(resource, range.floor);
    text += "..";
    if (range.ceiling != QuotaRange::kNoCeiling) text += AmountText(resource, range.ceiling);
  }
  return text;
}

}  // namespace kvarve
