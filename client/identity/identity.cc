#include "client/identity/identity.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/base/utf8.h"

namespace kvarve {
namespace {

constexpr std::string_view kOwnScheme = "kvarve://";
constexpr std::string_view kSpiffeScheme = "spiffe://";
constexpr std::string_view kSpiffePath = "/kvarve/";

bool IsUnreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

// Each name has one encoding only: what needs none must have none.
absl::StatusOr<std::string> PercentDecode(std::string_view text) {
  const auto bad = [] {
    return absl::InvalidArgumentError("a tenant that is not percent-encoded");
  };
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      if (!IsUnreserved(text[i])) return bad();
      decoded.push_back(text[i]);
      continue;
    }
    if (text.size() - i < 3) return bad();
    const absl::StatusOr<std::string> byte = FromHex(text.substr(i + 1, 2));
    if (!byte.ok() || IsUnreserved(byte->front())) return bad();
    decoded.push_back(byte->front());
    i += 2;
  }
  return decoded;
}

std::string PercentEncode(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (IsUnreserved(c)) {
      encoded.push_back(c);
    } else {
      encoded += absl::StrFormat("%%%02X", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

// The part of `uri` that is ours to read; none: the URI is another's.
std::optional<std::string_view> OwnPart(std::string_view uri, std::string_view trust_domain) {
  if (uri.starts_with(kOwnScheme)) return uri.substr(kOwnScheme.size());
  if (trust_domain.empty() || !uri.starts_with(kSpiffeScheme)) return std::nullopt;
  uri.remove_prefix(kSpiffeScheme.size());
  if (!uri.starts_with(trust_domain)) return std::nullopt;
  uri.remove_prefix(trust_domain.size());
  if (!uri.starts_with(kSpiffePath)) return std::nullopt;
  return uri.substr(kSpiffePath.size());
}

absl::StatusOr<CertificateIdentity> ParseOwnPart(std::string_view part) {
  CertificateIdentity identity;
  if (part == "peer" || part == "admin") {
    identity.role = part == "peer" ? Role::kPeer : Role::kAdmin;
    return identity;
  }
  if (part == "client") return identity;
  constexpr std::string_view kClient = "client/";
  if (!part.starts_with(kClient)) return absl::InvalidArgumentError("a role that is not known");
  KV_ASSIGN_OR_RETURN(identity.tenant, PercentDecode(part.substr(kClient.size())));
  KV_RETURN_IF_ERROR(CheckTenantName(identity.tenant));
  return identity;
}

}  // namespace

absl::Status CheckTenantName(std::string_view tenant) {
  const bool control = std::any_of(tenant.begin(), tenant.end(),
                                   [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (tenant.empty() || tenant.size() > kMaxTenantNameBytes || control || !IsUtf8(tenant)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a tenant's name is 1 to %d bytes of UTF-8 text without control characters",
                        kMaxTenantNameBytes));
  }
  return absl::OkStatus();
}

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kClient:
      return "client";
    case Role::kPeer:
      return "peer";
    case Role::kAdmin:
      return "admin";
  }
  return "";
}

std::string_view VerbName(Verb verb) {
  switch (verb) {
    case Verb::kLookup:
      return "lookup";
    case Verb::kRead:
      return "read";
    case Verb::kWrite:
      return "write";
    case Verb::kInvalidate:
      return "invalidate";
    case Verb::kStats:
      return "stats";
  }
  return "";
}

std::vector<std::string> VerbSet::Names() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < kVerbs; ++i) {
    if (Has(static_cast<Verb>(i))) names.emplace_back(VerbName(static_cast<Verb>(i)));
  }
  return names;
}

absl::StatusOr<VerbSet> VerbSet::Parse(std::span<const std::string> names) {
  VerbSet verbs;
  for (const std::string& name : names) {
    size_t i = 0;
    while (i < kVerbs && VerbName(static_cast<Verb>(i)) != name) ++i;
    if (i == kVerbs) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "\"%s\" is no verb; known: lookup, read, write, invalidate, stats", name.substr(0, 32)));
    }
    verbs.Add(static_cast<Verb>(i));
  }
  if (verbs.empty()) return absl::InvalidArgumentError("no verb at all");
  return verbs;
}

absl::StatusOr<CertificateIdentity> IdentityOfUris(std::span<const std::string> uris,
                                                   std::string_view trust_domain) {
  std::optional<std::string_view> own;
  for (const std::string& uri : uris) {
    const std::optional<std::string_view> part = OwnPart(uri, trust_domain);
    if (!part.has_value()) continue;
    if (own.has_value()) {
      return absl::UnauthenticatedError("the certificate names more than one kvarve identity");
    }
    own = part;
  }
  if (!own.has_value()) {
    return absl::UnauthenticatedError(
        "the certificate has no kvarve identity; it needs a URI name like kvarve://client/TENANT");
  }
  absl::StatusOr<CertificateIdentity> identity = ParseOwnPart(*own);
  if (identity.ok()) return identity;
  return absl::UnauthenticatedError(
      absl::StrFormat("the certificate's kvarve identity has %s", identity.status().message()));
}

std::string UriOfIdentity(const CertificateIdentity& identity) {
  std::string uri = std::string(kOwnScheme) + std::string(RoleName(identity.role));
  if (!identity.tenant.empty()) uri += "/" + PercentEncode(identity.tenant);
  return uri;
}

}  // namespace kvarve
