// cert dev, cert show: a development authority with certificates for servers, clients and
// administrators, and what a certificate says.
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "absl/strings/str_format.h"
#include "client/cli/context.h"
#include "client/cli/files.h"
#include "client/cli/output.h"
#include "client/identity/certificate.h"
#include "client/identity/identity.h"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"

namespace kvarve::cli {
namespace {

constexpr int64_t kSecondsPerDay = 86'400;
constexpr int64_t kBeforeSeconds = 300;  // clocks differ
constexpr int kAuthorityDays = 365;

struct DevFlags {
  std::string folder = "kvarve-dev-ca";
  std::vector<std::string> hosts = {"localhost", "127.0.0.1", "::1"};
  std::vector<std::string> tenants = {"default"};
  int days = 30;
};

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// The authority of the folder, made when there is none.
absl::StatusOr<Issued> Authority(const std::string& folder) {
  const std::string certificate = folder + "/ca.pem", key = folder + "/ca.key";
  if (::access(certificate.c_str(), F_OK) == 0) {
    Issued authority;
    KV_ASSIGN_OR_RETURN(authority.certificate, ReadFile(certificate, kMaxPemBytes));
    KV_ASSIGN_OR_RETURN(authority.key, ReadFile(key, kMaxPemBytes));
    return authority;
  }
  KV_ASSIGN_OR_RETURN(Issued authority,
                      NewAuthority("kvarve development authority", Now() - kBeforeSeconds,
                                   Now() + kAuthorityDays * kSecondsPerDay));
  KV_RETURN_IF_ERROR(WriteNewFile(key, authority.key, 0600));
  KV_RETURN_IF_ERROR(WriteNewFile(certificate, authority.certificate, 0644));
  return authority;
}

absl::Status IssueInto(const std::string& folder, const std::string& file, const Issued& authority,
                       CertificateRequest request, int days) {
  request.name = "kvarve " + file;
  request.not_before = Now() - kBeforeSeconds;
  request.not_after = Now() + days * kSecondsPerDay;
  KV_ASSIGN_OR_RETURN(const Issued issued, IssueCertificate(authority, request));
  // New ones take the old ones' place: this is how they are renewed, too.
  KV_RETURN_IF_ERROR(ReplaceFile(folder + "/" + file + ".key", issued.key, 0600));
  return ReplaceFile(folder + "/" + file + ".pem", issued.certificate, 0644);
}

// A tenant's name as part of a file's name.
std::string FileNameOf(const std::string& tenant) {
  std::string name;
  for (const char c : tenant) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_';
    name.push_back(plain ? c : '_');
  }
  return "client-" + name;
}

absl::Status MakeAll(const DevFlags& flags) {
  if (flags.days < 1 || flags.days > kAuthorityDays) {
    return absl::InvalidArgumentError(absl::StrFormat("--days is 1 to %d", kAuthorityDays));
  }
  if (::mkdir(flags.folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: %s", flags.folder, std::strerror(errno)));
  }
  KV_ASSIGN_OR_RETURN(const Issued authority, Authority(flags.folder));
  CertificateRequest server;
  server.uris = {UriOfIdentity({Role::kPeer, ""})};
  server.hosts = flags.hosts;
  server.server = true;
  KV_RETURN_IF_ERROR(IssueInto(flags.folder, "server", authority, server, flags.days));
  CertificateRequest admin;
  admin.uris = {UriOfIdentity({Role::kAdmin, ""})};
  KV_RETURN_IF_ERROR(IssueInto(flags.folder, "admin", authority, admin, flags.days));
  CertificateRequest any;
  any.uris = {UriOfIdentity({Role::kClient, ""})};
  KV_RETURN_IF_ERROR(IssueInto(flags.folder, "client", authority, any, flags.days));
  for (const std::string& tenant : flags.tenants) {
    KV_RETURN_IF_ERROR(CheckTenantName(tenant));
    CertificateRequest client;
    client.uris = {UriOfIdentity({Role::kClient, tenant})};
    KV_RETURN_IF_ERROR(IssueInto(flags.folder, FileNameOf(tenant), authority, client, flags.days));
  }
  return absl::OkStatus();
}

int Dev(const Context& context, const DevFlags& flags) {
  const absl::Status made = MakeAll(flags);
  if (!made.ok()) return Report(context, made);
  std::vector<std::string> clients;
  for (const std::string& tenant : flags.tenants) clients.push_back(FileNameOf(tenant) + ".pem");
  if (context.json) {
    PrintJson({{"folder", flags.folder},
               {"authority", "ca.pem"},
               {"server", "server.pem"},
               {"admin", "admin.pem"},
               {"client", "client.pem"},
               {"tenants", clients}});
    return kExitGood;
  }
  std::string text = absl::StrFormat(
      "For development only: who has %1$s/ca.key can be anybody.\n\n"
      "kvarved  --rpc.tls_certificate_file %1$s/server.pem --rpc.tls_key_file %1$s/server.key \\\n"
      "         --rpc.tls_client_ca_file %1$s/ca.pem\n\n"
      "client.pem needs a token that says the tenant; admin.pem administers; of one tenant each:\n",
      flags.folder);
  for (const std::string& client : clients) text += "  " + client + "\n";
  Print(text + absl::StrFormat("Good for %d days; the same command renews them.\n", flags.days));
  return kExitGood;
}

int Show(const Context& context, const std::string& path) {
  const absl::StatusOr<std::string> pem = ReadFile(path, kMaxCertificateBytes);
  if (!pem.ok()) return Report(context, pem.status());
  const absl::StatusOr<CertificateFacts> facts = ReadCertificate(*pem);
  if (!facts.ok()) return Report(context, InFile(path, facts.status()));
  const absl::StatusOr<CertificateIdentity> identity = IdentityOfUris(facts->uris, "");
  const std::string role = identity.ok() ? std::string(RoleName(identity->role)) : "none";
  const std::string tenant = identity.ok() ? identity->tenant : "";
  if (context.json) {
    PrintJson({{"role", role},
               {"tenant", tenant},
               {"uris", facts->uris},
               {"fingerprint", facts->fingerprint},
               {"not_before", facts->not_before},
               {"not_after", facts->not_after}});
    return kExitGood;
  }
  const int64_t left = facts->not_after - Now();
  Print(PairsText({{"role", role},
                   {"tenant", tenant.empty() ? "-" : Plain(tenant)},
                   {"fingerprint", facts->fingerprint},
                   {"good for", left > 0 ? absl::StrFormat("%d days", left / kSecondsPerDay)
                                         : "nothing: it has expired"}}));
  return kExitGood;
}

}  // namespace

void AddCertCommand(CLI::App* app, Context* context) {
  CLI::App* const cert = app->add_subcommand("cert", "Certificates of daemons and remote callers");
  cert->require_subcommand(1);
  CLI::App* const dev = cert->add_subcommand(
      "dev", "Makes a development authority and certificates, or renews the certificates");
  const auto flags = std::make_shared<DevFlags>();
  dev->add_option("--folder", flags->folder, "Where they are written")->capture_default_str();
  dev->add_option("--host", flags->hosts, "Names and addresses of the server")
      ->delimiter(',')
      ->capture_default_str();
  dev->add_option("--tenant", flags->tenants, "Tenants to make a client's certificate for")
      ->delimiter(',')
      ->capture_default_str();
  dev->add_option("--days", flags->days, "How long they are good")->capture_default_str();
  dev->callback([=] { context->command = [=] { return Dev(*context, *flags); }; });
  CLI::App* const show = cert->add_subcommand("show", "Says whose certificate a file holds");
  const auto path = std::make_shared<std::string>();
  show->add_option("file", *path, "A certificate in PEM")->required();
  show->callback([=] { context->command = [=] { return Show(*context, *path); }; });
}

}  // namespace kvarve::cli
