// tenants, quota: what tenants have and may have.
#include <CLI/CLI.hpp>
#include <memory>

#include "absl/strings/str_format.h"
#include "client/cli/context.h"
#include "client/cli/files.h"
#include "client/cli/output.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::cli {
namespace {

constexpr size_t kPagesMax = 64;

absl::StatusOr<Json> AllTenants(const Context& context) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Connect(context));
  Json all = Json::array();
  for (size_t page = 0; page < kPagesMax; ++page) {
    KV_ASSIGN_OR_RETURN(const Json answer,
                        Ask(client.get(), {{"op", "tenants"}, {"offset", all.size()}}));
    const auto list = answer.find("tenants");
    if (list == answer.end() || !list->is_array() || list->empty()) break;
    for (const Json& tenant : *list) all.push_back(tenant);
    if (all.size() >= Number(answer, "total")) break;
  }
  return all;
}

int Tenants(const Context& context) {
  const absl::StatusOr<Json> tenants = AllTenants(context);
  if (!tenants.ok()) return Report(context, tenants.status());
  if (context.json) {
    PrintJson({{"tenants", *tenants}});
    return kExitGood;
  }
  Table table({"tenant", "used", "share", "blocks", "leased", "hits", "stored", "quota"},
              /*left=*/true);
  for (const Json& of : *tenants) {
    table.Add({Plain(TextOf(of, "tenant")), FormatBytes(Number(of, "used_bytes")),
               FormatBytes(Number(of, "share_bytes")), CountText(Number(of, "entries")),
               FormatBytes(Number(of, "leased_bytes")),
               PercentText(Number(of, "hit_keys"), Number(of, "lookup_keys")),
               FormatBytes(Number(of, "put_bytes")), TextOf(of, "quota")});
  }
  Print(table.Text());
  return kExitGood;
}

int Quota(const Context& context, const std::string& tenant, const std::string& quota) {
  const absl::StatusOr<Json> answer =
      Ask(context, {{"op", "quota"}, {"tenant", tenant}, {"quota", quota}});
  if (!answer.ok()) return Report(context, answer.status());
  if (context.json) {
    PrintJson(*answer);
  } else {
    const std::string now = TextOf(*answer, "quota");
    Print(absl::StrFormat("%s: %s, until the daemon's next start (tenant.quotas keeps it)\n",
                          Plain(tenant), now.empty() ? "no limits" : now));
  }
  return kExitGood;
}

}  // namespace

void AddTenantCommands(CLI::App* app, Context* context) {
  CLI::App* const tenants =
      app->add_subcommand("tenants", "What each tenant has, may have and did");
  tenants->callback([=] { context->command = [=] { return Tenants(*context); }; });

  CLI::App* const quota = app->add_subcommand("quota", "Changes what a tenant may have");
  const auto tenant = std::make_shared<std::string>(), text = std::make_shared<std::string>();
  quota->add_option("tenant", *tenant, "The tenant's name")->required();
  quota
      ->add_option("quota", *text,
                   "All of it, as in \"host_bytes:1GiB..4GiB entries:..1000000\"; \"\": no limits")
      ->required();
  quota->callback([=] { context->command = [=] { return Quota(*context, *tenant, *text); }; });
}

}  // namespace kvarve::cli
