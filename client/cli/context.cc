#include "client/cli/context.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "client/cli/output.h"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::cli {

absl::StatusOr<std::unique_ptr<Client>> Connect(const Context& context, uint64_t staging_bytes) {
  KV_ASSIGN_OR_RETURN(const int64_t timeout_nanos, ParseDuration(context.timeout));
  ClientOptions options;
  options.endpoint = context.endpoint;
  options.token_file = context.token_file;
  options.client_name = "kvarve";
  options.staging_bytes = staging_bytes;
  options.timeout_nanos = timeout_nanos;
  options.put_timeout_nanos = std::max(options.put_timeout_nanos, timeout_nanos);
  KV_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Create(options));
  const absl::Status ready = client->WaitReady(timeout_nanos);
  // Another host's daemon may answer, and refuse.
  if (!ready.ok() && client->is_remote() && ready.code() != absl::StatusCode::kDeadlineExceeded) {
    return ready;
  }
  if (!ready.ok()) {
    return absl::UnavailableError(
        absl::StrFormat("no daemon answers at %s: %s", context.endpoint, ToStd(ready.message())));
  }
  return client;
}

absl::StatusOr<Json> Ask(Client* client, const Json& request) {
  KV_ASSIGN_OR_RETURN(const std::string text, client->Admin(request.dump()));
  Json answer = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) return absl::InternalError("the daemon's answer is not a JSON object");
  return answer;
}

absl::StatusOr<Json> Ask(const Context& context, const Json& request) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Connect(context));
  return Ask(client.get(), request);
}

int Report(const Context& context, const absl::Status& status) {
  if (status.ok()) return kExitGood;
  const std::string message(status.message());
  if (context.json) {
    PrintJson(
        {{"error", {{"code", absl::StatusCodeToString(status.code())}, {"message", message}}}});
  } else {
    std::fprintf(stderr, "kvarve: %s\n", message.c_str());
  }
  if (status.code() != absl::StatusCode::kUnavailable) return kExitFailed;
  if (!context.json) std::fprintf(stderr, "`kvarve doctor` looks for the cause\n");
  return kExitNoDaemon;
}

int ReportUsage(const Context& context, std::string_view text) {
  Report(context, absl::InvalidArgumentError(ToAbsl(text)));
  return kExitUsage;
}

}  // namespace kvarve::cli
