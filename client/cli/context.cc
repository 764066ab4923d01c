#include "client/cli/context.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "client/cli/output.h"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"
#include "storage/base/units.h"

namespace kvarve::cli {

namespace {

// How the client says that it connected and heard nothing.
constexpr std::string_view kNoAnswer = "does not answer HELLO";

}  // namespace

bool SomebodyListens(const std::string& endpoint) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!endpoint.starts_with(kUnixScheme)) return false;
  const std::string path = endpoint.substr(kUnixScheme.size());
  if (path.size() >= sizeof(address.sun_path)) return false;
  path.copy(address.sun_path, path.size());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return socket.valid() && (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                                      sizeof(address)) == 0 ||
                            errno == EAGAIN);  // so many wait already
}

absl::StatusOr<std::unique_ptr<Client>> Connect(const Context& context, uint64_t staging_bytes) {
  KV_ASSIGN_OR_RETURN(const int64_t timeout_nanos, ParseDuration(context.timeout));
  ClientOptions options;
  options.endpoint = context.endpoint;
  options.token_file = context.token_file;
  options.tls = context.tls;
  options.insecure_plaintext_off_loopback = context.insecure_plaintext_off_loopback;
  options.client_name = "kvarve";
  options.staging_bytes = staging_bytes;
  options.timeout_nanos = timeout_nanos;
  options.put_timeout_nanos = timeout_nanos;
  KV_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Create(options));
  absl::Status ready = client->WaitReady(timeout_nanos);
  // An endpoint of administration serves no blocks.
  if (client->is_remote() && absl::IsUnimplemented(ready)) ready = absl::OkStatus();
  // Another host's daemon may answer, and refuse.
  if (!ready.ok() && client->is_remote() && ready.code() != absl::StatusCode::kDeadlineExceeded) {
    return ready;
  }
  const std::string error = ready.ok() ? "" : client->State().last_error;
  const bool is_silent = error.empty() || error.ends_with(kNoAnswer);
  if (!ready.ok() && is_silent && SomebodyListens(context.endpoint)) {
    return absl::UnavailableError(absl::StrFormat(
        "kvarved listens at %s and does not answer in %s: it is stopped (SIGSTOP), hangs, or has "
        "too much to do",
        context.endpoint, context.timeout));
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
