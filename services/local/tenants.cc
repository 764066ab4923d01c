#include "services/local/tenants.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"
#include "storage/base/units.h"
#include "storage/base/write_file.h"

namespace kvarve {
namespace {

// The file: this line, then "<salt in hex> <tenant>" a line.
constexpr char kSaltHeader[] = "kvarve-tenant-salts-1\n";
constexpr size_t kMaxSaltFileBytes = kMaxTenants * (2 * kTenantSaltBytes + 2 + kMaxTenantNameBytes);

absl::Status FileError(const std::string& path, const char* what) {
  return absl::UnavailableError(absl::StrCat(path, ": ", what, ": ", std::strerror(errno)));
}

std::string RandomSalt() {
  std::string salt(kTenantSaltBytes, '\0');
  // Up to 256 bytes come whole and uninterrupted.
  KV_CHECK(::getrandom(salt.data(), salt.size(), 0) == static_cast<ssize_t>(salt.size()));
  return salt;
}

absl::StatusOr<std::string> ReadSalts(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) {
    if (errno == ENOENT) return std::string();
    return FileError(path, "open");
  }
  struct stat st;
  if (::fstat(fd.get(), &st) != 0) return FileError(path, "stat");
  if (!S_ISREG(st.st_mode) || (st.st_mode & 077) != 0 || st.st_uid != ::geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": holds secrets; it must be a file of this user with mode 0600 (chmod 600)"));
  }
  if (static_cast<size_t>(st.st_size) > kMaxSaltFileBytes) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is damaged (too long)"));
  }
  std::string text(static_cast<size_t>(st.st_size), '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + have, text.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return FileError(path, "read");
    have += static_cast<size_t>(n);
  }
  return text;
}

absl::StatusOr<std::map<std::string, std::string>> ParseSalts(const std::string& path,
                                                              const std::string& text) {
  const auto damaged = [&] {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": is damaged; restore it, or remove it and lose every namespace's blocks"));
  };
  std::map<std::string, std::string> salts;
  if (text.empty()) return salts;
  constexpr size_t kHeaderBytes = sizeof(kSaltHeader) - 1;
  constexpr size_t kHexBytes = 2 * kTenantSaltBytes;
  if (text.compare(0, kHeaderBytes, kSaltHeader) != 0) return damaged();
  for (size_t at = kHeaderBytes; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos || end - at < kHexBytes + 2 || text[at + kHexBytes] != ' ') {
      return damaged();
    }
    absl::StatusOr<std::string> salt = FromHex(text.substr(at, kHexBytes));
    const std::string tenant = text.substr(at + kHexBytes + 1, end - at - kHexBytes - 1);
    if (!salt.ok() || !CheckTenantName(tenant).ok()) return damaged();
    if (!salts.emplace(tenant, *salt).second) return damaged();
    at = end + 1;
  }
  return salts;
}

absl::Status WriteSalts(const std::string& path, const std::map<std::string, std::string>& salts) {
  std::string text = kSaltHeader;
  for (const auto& [tenant, salt] : salts) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(salt.data());
    absl::StrAppend(&text, ToHex({bytes, salt.size()}), " ", tenant, "\n");
  }
  return ReplaceFile(path, text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tenants>> Tenants::Create(const LocalServerOptions& options) {
  std::unique_ptr<Tenants> tenants(new Tenants());
  tenants->rules_ = options.tenants;
  tenants->default_tenant_ = options.default_tenant;
  if (options.tenants.size() + options.more_tenants.size() >= kMaxTenants) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxTenants, " tenant rules"));
  }
  std::set<std::string> names = {options.default_tenant};
  for (const TenantRule& rule : options.tenants) names.insert(rule.tenant);
  names.insert(options.more_tenants.begin(), options.more_tenants.end());
  for (const std::string& name : names) KV_RETURN_IF_ERROR(CheckTenantName(name));

  std::map<std::string, std::string> known;
  const std::string path = options.state_dir + "/tenant_salts";
  if (!options.state_dir.empty()) {
    if (::mkdir(options.state_dir.c_str(), 0700) != 0 && errno != EEXIST) {
      return FileError(options.state_dir, "mkdir");
    }
    KV_ASSIGN_OR_RETURN(const std::string text, ReadSalts(path));
    KV_ASSIGN_OR_RETURN(known, ParseSalts(path, text));
  }
  // Tenants that are not configured now keep their salt: they may come back.
  const size_t before = known.size();
  for (const std::string& name : names) {
    if (!known.contains(name)) known.emplace(name, RandomSalt());
    tenants->salts_[name] = known[name];
  }
  if (known.size() > 2 * kMaxTenants) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": holds too many tenants"));
  }
  if (!options.state_dir.empty() && known.size() > before) {
    KV_RETURN_IF_ERROR(WriteSalts(path, known));
  }
  return tenants;
}

const std::string& Tenants::TenantOf(uid_t uid, gid_t gid, const std::vector<gid_t>& groups) const {
  for (const TenantRule& rule : rules_) {
    if (rule.uid.has_value() && *rule.uid != uid) continue;
    const bool in_group = !rule.gid.has_value() || *rule.gid == gid ||
                          std::find(groups.begin(), groups.end(), *rule.gid) != groups.end();
    if (in_group) return rule.tenant;
  }
  return default_tenant_;
}

absl::StatusOr<NamespaceDescriptor> Tenants::Complete(const std::string& tenant,
                                                      NamespaceDescriptor descriptor,
                                                      const NamespaceDigest& digest) const {
  if (!descriptor.tenant.empty() || !descriptor.tenant_salt.empty()) {
    return absl::InvalidArgumentError("tenant and tenant_salt are written by the daemon only");
  }
  if (!(DigestOf(descriptor) == digest)) {
    return absl::FailedPreconditionError(
        "descriptor encodes differently: client and daemon disagree on its digest; update the "
        "older one");
  }
  const auto salt = salts_.find(tenant);
  if (salt == salts_.end()) {
    return absl::NotFoundError(absl::StrCat("this daemon does not know the tenant \"", tenant,
                                            "\"; name it in tenant.names"));
  }
  descriptor.tenant = tenant;
  descriptor.tenant_salt = salt->second;
  KV_RETURN_IF_ERROR(ValidateDescriptor(descriptor));
  return descriptor;
}

}  // namespace kvarve
