// kvarve: the command-line client of kvarved.
#include <signal.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "client/cli/command_tree.h"
#include "client/cli/context.h"
#include "client/cli/output.h"
#include "storage/base/units.h"
#ifdef KVARVE_WITH_GRPC
#include "client/rpc/grpc_plane.h"
#endif

namespace kvarve::cli {
namespace {

constexpr char kFooter[] = R"(
Exit codes: 0 good; 1 the daemon refused, or something failed; 2 wrong command line; 3 no daemon answers;
4 fewer blocks were found than asked for; 5 doctor found a problem.)";

void AddTlsOptions(CLI::App* app, ClientTls* tls) {
  app->add_option("--tls-ca-file", tls->ca_file, "Authorities of daemons' certificates (PEM)")
      ->envname("KVARVE_TLS_CA_FILE");
  app->add_option("--tls-certificate-file", tls->certificate_file, "This client's certificate")
      ->envname("KVARVE_TLS_CERTIFICATE_FILE");
  app->add_option("--tls-key-file", tls->key_file, "Its key (mode 0600)")
      ->envname("KVARVE_TLS_KEY_FILE");
  app->add_option("--tls-server-name", tls->server_name,
                  "Name that the daemon's certificate must have, when not the endpoint's")
      ->envname("KVARVE_TLS_SERVER_NAME");
}

int Refuse(const CLI::App& app, const CLI::Error& error, const std::vector<std::string>& words) {
  Context context;
  // The command line was not taken, so this cannot be asked of it.
  context.json = std::ranges::find(words, "--json") != words.end();
  std::string text = error.what();
  if (const std::string meant = MeantWord(app, words); !meant.empty()) {
    text += "; did you mean " + meant + "?";
  }
  const int exit = ReportUsage(context, text);
  if (!context.json) std::fprintf(stderr, "`kvarve [COMMAND] --help` shows what there is\n");
  return exit;
}

int Main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_DFL);
#ifdef KVARVE_WITH_GRPC
  // An error is said once, in our words; who wants gRPC's own lines sets the variable.
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  client::UseGrpc();
#endif
  Context context;
  CLI::App app("kvarve: asks and directs the kvarved of this host, or asks one of another",
               "kvarve");
  app.set_version_flag("--version", "kvarve " KVARVE_VERSION);
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();  // options of all commands may stand behind the command too
  app.add_option("--endpoint", context.endpoint,
                 "Where the daemon is: unix:///PATH, kvarves://HOST:PORT for gRPC in TLS, or "
                 "kvarve://HOST:PORT in plaintext")
      ->envname("KVARVE_ENDPOINT")
      ->capture_default_str();
  app.add_option("--token-file", context.token_file,
                 "File whose first line is shown to daemons of other hosts")
      ->envname("KVARVE_TOKEN_FILE");
  AddTlsOptions(&app, &context.tls);
  app.add_flag("--insecure-plaintext-off-loopback", context.insecure_plaintext_off_loopback,
               "Let kvarve:// go to other hosts, unencrypted")
      ->envname("KVARVE_INSECURE_PLAINTEXT_OFF_LOOPBACK");
  app.add_option("--timeout", context.timeout,
                 "How long to wait for it, and for each of its answers")
      ->capture_default_str()
      ->check([](const std::string& text) {
        const absl::StatusOr<int64_t> nanos = ParseDuration(text);
        if (!nanos.ok()) return std::string(nanos.status().message());
        return std::string(*nanos > 0 ? "" : "no time at all; write it like \"500ms\" or \"5s\"");
      });
  app.add_flag("--json", context.json, "JSON on standard output, errors too");
  AddDaemonCommands(&app, &context);
  AddStatsCommand(&app, &context);
  AddBlockCommands(&app, &context);
  AddEventsCommand(&app, &context);
  AddBenchCommand(&app, &context);
  AddConfigCommand(&app, &context);
  AddTenantCommands(&app, &context);
  AddTokenCommand(&app, &context);
  AddCertCommand(&app, &context);
  AddDoctorCommand(&app, &context);
  AddReplayCommand(&app, &context);
  AddDeviceCommand(&app, &context);
  AddPagedSimCommand(&app, &context);
  app.add_flag_callback(
         "--print-commands",
         [&app] {
           Print(CommandTree(app).dump(2) + "\n");
           throw CLI::Success();
         },
         "Print all commands and options as JSON")
      ->trigger_on_parse()
      ->group("");
  try {
    app.parse(argc, argv);
    return context.command();
  } catch (const CLI::Error& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help, version
    return Refuse(app, error, std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {  // an answer of another shape than any known daemon's
    std::fprintf(stderr, "kvarve: %s\n", error.what());
    return kExitFailed;
  }
}

}  // namespace
}  // namespace kvarve::cli

int main(int argc, char** argv) { return kvarve::cli::Main(argc, argv); }
