// What every command of `kvarve` shares: options, the connection, exit codes, errors.
// THREADS: one.
#ifndef KVARVE_CLIENT_CLI_CONTEXT_H_
#define KVARVE_CLIENT_CLI_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/cpp/environment.h"

namespace CLI {
class App;
}

namespace kvarve::cli {

using Json = nlohmann::ordered_json;

inline constexpr std::string_view kUnixScheme = "unix://";
using client::kDefaultEndpoint;

enum ExitCode {
  kExitGood = 0,
  kExitFailed = 1,    // the daemon refused or something failed
  kExitUsage = 2,     // the command line is wrong
  kExitNoDaemon = 3,  // no daemon answers
  kExitMiss = 4,      // fewer blocks were found than asked for
  kExitProblem = 5,   // doctor found a problem
};

struct Context {
  std::string endpoint = kDefaultEndpoint;
  std::string token_file;  // empty: none
  ClientTls tls;
  bool insecure_plaintext_off_loopback = false;
  std::string timeout = "5s";
  bool json = false;
  std::function<int()> command;  // of the chosen subcommand; returns an exit code
};

// Each adds its subcommands; they set `context->command`.
void AddDaemonCommands(CLI::App* app, Context* context);  // status, resize, invalidate
void AddStatsCommand(CLI::App* app, Context* context);
void AddBlockCommands(CLI::App* app, Context* context);  // lookup, prefetch, put, get
void AddEventsCommand(CLI::App* app, Context* context);
void AddBenchCommand(CLI::App* app, Context* context);
void AddConfigCommand(CLI::App* app, Context* context);
void AddTenantCommands(CLI::App* app, Context* context);  // tenants, quota
void AddTokenCommand(CLI::App* app, Context* context);
void AddCertCommand(CLI::App* app, Context* context);
void AddDoctorCommand(CLI::App* app, Context* context);
void AddReplayCommand(CLI::App* app, Context* context);
void AddDeviceCommand(CLI::App* app, Context* context);
void AddPagedSimCommand(CLI::App* app, Context* context);

// Whether somebody listens on the socket of a unix:// endpoint, though he may never answer.
bool SomebodyListens(const std::string& endpoint);

// A client that is connected. Unavailable, with what to do: nobody answers within the timeout.
absl::StatusOr<std::unique_ptr<Client>> Connect(const Context& context, uint64_t staging_bytes = 0);
// Connects, asks, parses.
absl::StatusOr<Json> Ask(const Context& context, const Json& request);
absl::StatusOr<Json> Ask(Client* client, const Json& request);

// Writes the error where the user looks for it and returns the exit code that goes with it.
int Report(const Context& context, const absl::Status& status);
int ReportUsage(const Context& context, std::string_view text);

}  // namespace kvarve::cli

#endif  // KVARVE_CLIENT_CLI_CONTEXT_H_
