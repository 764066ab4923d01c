// doctor: runs the checks and prints what they found.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "absl/strings/str_format.h"
#include "client/cli/context.h"
#include "client/cli/doctor.h"
#include "client/cli/output.h"
#include "gpu/device/cuda_device.h"
#include "gpu/device/driver.h"

namespace kvarve::cli {
namespace {

struct DoctorFlags {
  std::string python;
  std::vector<std::string> command;
  uint32_t engines = 1;
};

std::string_view LevelName(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      return "problem";
  }
  return "";
}

std::map<std::string, std::string> Environment() {
  std::map<std::string, std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const size_t equals = text.find('=');
    if (equals != std::string::npos)
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

void ExaminePython(const std::string& python, const Json& settings, Findings* findings) {
  const absl::StatusOr<Json> answer = AskPython(python, settings);
  if (answer.ok()) {
    CheckPython(*answer, findings);
  } else {
    findings->push_back({"engine", "Python", Level::kProblem,
                         std::string(answer.status().message()),
                         "name the Python that runs the engine with --python"});
  }
}

void ExamineEngine(const Context& context, const DoctorFlags& flags, const Json& daemon,
                   Findings* findings) {
  const EngineCommand engine = ParseEngineCommand(flags.command, Environment());
  const std::string python = flags.python.empty() ? PythonOf(engine) : flags.python;
  if (python.empty()) {
    if (flags.command.empty()) return;
    findings->push_back({"engine", "Python", Level::kWarning,
                         "which one the command runs cannot be seen: its packages and the "
                         "connector's settings were not checked",
                         "name it with --python"});
  } else {
    ExaminePython(python, flags.command.empty() ? Json() : ConnectorSettings(engine), findings);
  }
  if (flags.command.empty()) return;
  CheckEngineCommand(engine, context.endpoint, findings);
  CheckEngineSize(engine, flags.engines, daemon, findings);
}

void Examine(const Context& context, const DoctorFlags& flags, Findings* findings) {
  const HostView host;
  Json daemon = Json::object();
  if (context.endpoint.starts_with(kUnixScheme))
    CheckSocket(context.endpoint.substr(kUnixScheme.size()), findings);
  CheckHost(host, findings);
  const absl::StatusOr<const cuda::Driver*> driver = cuda::LoadDriver();
  CheckGpus(driver.ok() ? ListCudaDevices(**driver) : driver.status(), findings);
  const absl::StatusOr<std::unique_ptr<Client>> client = Connect(context);
  if (!client.ok()) {
    const std::string text(client.status().message());
    std::string action = "start kvarved, or name its socket with --endpoint";
    if (!context.endpoint.starts_with(kUnixScheme)) {
      action =
          absl::IsUnauthenticated(client.status()) || absl::IsPermissionDenied(client.status())
              ? "the daemon is there and refuses these credentials: see `kvarve token inspect`, "
                "--token-file and --tls-certificate-file"
              : "see that kvarved runs there and serves blocks at this address (rpc.listen), "
                "that nothing between filters it, and that --tls-ca-file is the authority of "
                "its certificate";
    } else if (SomebodyListens(context.endpoint)) {
      action = text.find("does not answer") != std::string::npos
                   ? "look at the process (ps -C kvarved -o pid,stat): if it is stopped (T), kill "
                     "-CONT lets it go on; else a longer --timeout, or start it again"
                   : "the daemon is there and refuses this user: do what it says";
    }
    findings->push_back({"daemon", "connection", Level::kProblem, text, action});
  } else {
    findings->push_back({"daemon", "connection", Level::kOk, context.endpoint, ""});
    const absl::StatusOr<Json> status = Ask(client->get(), {{"op", "status"}});
    if (status.ok()) {
      daemon = *status;
      CheckDaemon(*status, host, findings);
    } else if (absl::IsUnimplemented(status.status())) {  // at another host's rpc.listen
      findings->push_back({"daemon", "status", Level::kOk,
                           "told at rpc.admin_listen and on its own host, not to who has blocks",
                           ""});
    } else {
      findings->push_back({"daemon", "status", Level::kWarning,
                           std::string(status.status().message()),
                           "run doctor as the daemon's user to see more"});
    }
  }
  ExamineEngine(context, flags, daemon, findings);
}

int Doctor(const Context& context, const DoctorFlags& flags) {
  Findings findings;
  Examine(context, flags, &findings);
  size_t problems = 0, warnings = 0;
  Json list = Json::array();
  Table table({"", "area", "check", "finding"}, /*left=*/true);
  for (const Finding& finding : findings) {
    problems += finding.level == Level::kProblem ? 1 : 0;
    warnings += finding.level == Level::kWarning ? 1 : 0;
    const std::string level(LevelName(finding.level));
    list.push_back({{"level", level},
                    {"area", finding.area},
                    {"check", finding.check},
                    {"text", finding.text},
                    {"action", finding.action}});
    table.Add({level, finding.area, finding.check, finding.text});
    if (!finding.action.empty()) table.Add({"", "", "", "-> " + finding.action});
  }
  if (context.json) {
    PrintJson({{"problems", problems}, {"warnings", warnings}, {"findings", std::move(list)}});
  } else {
    Print(table.Text() + absl::StrFormat("\n%d problems, %d warnings\n", problems, warnings));
  }
  return problems > 0 ? kExitProblem : kExitGood;
}

}  // namespace

void AddDoctorCommand(CLI::App* app, Context* context) {
  CLI::App* const doctor = app->add_subcommand(
      "doctor", "Look for what keeps an engine from using the daemon, or makes it slow");
  const auto flags = std::make_shared<DoctorFlags>();
  doctor->add_option("--python", flags->python,
                     "The Python that runs the engine: look at its packages too");
  doctor
      ->add_option("--engines", flags->engines, "How many engines of that command run on this host")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  doctor->add_option("command", flags->command,
                     "The engine's command line, behind --: look at its flags too");
  doctor->callback([=] { context->command = [=] { return Doctor(*context, *flags); }; });
}

}  // namespace kvarve::cli
