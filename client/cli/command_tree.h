// The commands and options of `kvarve`, from the parser's own tables: as JSON, of which man pages
// and completions are made, and to say what a mistyped word was meant to be. THREADS: any.
#ifndef KVARVE_CLIENT_CLI_COMMAND_TREE_H_
#define KVARVE_CLIENT_CLI_COMMAND_TREE_H_

#include <span>
#include <string>

#include "client/cli/context.h"

namespace kvarve::cli {

// {"name", "help", "options": [{"names", "help", "value", "default", "environment"}], "commands":
// [the same]} An option that takes no value has "value": "".
Json CommandTree(const CLI::App& app);

// The known command or option that the first unknown one among `words` (a command line without the
// program's name) was most likely meant to be; empty: all are known, or none is near.
std::string MeantWord(const CLI::App& app, std::span<const std::string> words);

}  // namespace kvarve::cli

#endif  // KVARVE_CLIENT_CLI_COMMAND_TREE_H_
