// The commands and options of `kvarve` as JSON, from the parser's own tables: man pages and
// completions are made from it. THREADS: any.
#ifndef KVARVE_CLIENT_CLI_COMMAND_TREE_H_
#define KVARVE_CLIENT_CLI_COMMAND_TREE_H_

#include "client/cli/context.h"

namespace kvarve::cli {

// {"name", "help", "options": [{"names", "help", "value", "default", "environment"}], "commands":
// [the same]} An option that takes no value has "value": "".
Json CommandTree(const CLI::App& app);

}  // namespace kvarve::cli

#endif  // KVARVE_CLIENT_CLI_COMMAND_TREE_H_
