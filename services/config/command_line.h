// kvarved's command line: what to do, and a flag for every setting of the table.
// THREADS: one.
#ifndef KVARVE_SERVICES_CONFIG_COMMAND_LINE_H_
#define KVARVE_SERVICES_CONFIG_COMMAND_LINE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace kvarve {

struct CommandLine {
  enum class Action {
    kRun,
    kCheck,
    kPrintConfig,
    kPrintDocs,
    kPrintMetrics,
    kPrintSchema,
    kVersion,
    kHelp
  };
  Action action = Action::kRun;
  std::string config_file;  // of --config; empty: not given
  std::vector<std::pair<std::string, std::string>> flags;
  std::string help;  // for kHelp
};

// InvalidArgument: an unknown flag (with the nearest one), a flag without its value, two actions.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_CONFIG_COMMAND_LINE_H_
