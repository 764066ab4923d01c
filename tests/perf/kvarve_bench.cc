// kvarve_bench: runs the suites that are named (all, if none is) and prints their table.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "tests/perf/bench_table.h"
#include "tests/perf/own_network.h"

namespace kvarve::perf {
namespace {

int Main(int argc, char** argv) {
  std::vector<Suite> suites = Suites();
  std::sort(suites.begin(), suites.end(),
            [](const Suite& a, const Suite& b) { return a.name < b.name; });
  std::string footer = "Suites:\n";
  for (const Suite& suite : suites) footer += "  " + suite.name + ": " + suite.what + "\n";

  CLI::App app("Benches of kvarve against bare loops, in one table");
  app.footer(footer);
  std::vector<std::string> names;
  std::string filter, json;
  bool gate = false;
  app.add_option("suite", names, "which suites; all if none is named")->type_name("SUITE");
  app.add_option("--filter", filter, "only rows whose names contain this")->type_name("TEXT");
  app.add_option("--json", json, "also write the rows to this file")->type_name("FILE");
  app.add_flag("--gate", gate, "exit 1 when a gate fails or a row could not be measured");
  CLI11_PARSE(app, argc, argv);

  for (const std::string& name : names) {
    if (std::none_of(suites.begin(), suites.end(),
                     [&](auto& suite) { return suite.name == name; })) {
      std::fprintf(stderr, "kvarve_bench: no suite '%s'\n%s", name.c_str(), footer.c_str());
      return 2;
    }
  }
  std::fprintf(stderr, "%s\n", EnterOwnNetwork().c_str());
  BenchTable table(filter, stderr);
  for (const Suite& suite : suites) {
    if (!names.empty() && std::find(names.begin(), names.end(), suite.name) == names.end())
      continue;
    std::fprintf(stderr, "%s: %s\n", suite.name.c_str(), suite.what.c_str());
    suite.run(&table);
  }
  std::fputs(table.Text().c_str(), stdout);
  if (!json.empty()) {
    std::ofstream file(json);
    file << table.Json();
    if (!file.flush()) {
      std::fprintf(stderr, "kvarve_bench: cannot write %s\n", json.c_str());
      return 2;
    }
  }
  if (gate && table.rows().empty()) {
    std::fprintf(stderr, "kvarve_bench: --gate, and no row's name contains '%s'\n", filter.c_str());
    return 2;
  }
  return gate && !table.AllPass() ? 1 : 0;
}

}  // namespace
}  // namespace kvarve::perf

int main(int argc, char** argv) { return kvarve::perf::Main(argc, argv); }
