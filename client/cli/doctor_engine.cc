// doctor's checks of the engine's command line and environment.
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/doctor.h"
#include "client/cli/output.h"
#include "client/cli/vllm_config.h"
#include "storage/base/units.h"

namespace kvarve::cli {
namespace {

constexpr uint64_t kConnectionsOfWorker = 2;           // one loads, one saves
constexpr uint64_t kStagingBytesDefault = 256 * kMiB;  // connectors/vllm/settings.py
constexpr uint64_t kSizeMax = 65536;

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

// Words of the command line like --kv-transfer-config.kv_connector_extra_config.endpoint=PATH (or
// PATH as the next word): the part behind the flag's name, and the value.
std::vector<std::pair<std::string, std::string>> DottedFlags(std::span<const std::string> words) {
  std::vector<std::pair<std::string, std::string>> flags;
  for (size_t i = 0; i < words.size(); ++i) {
    for (const absl::string_view prefix : {"--kv-transfer-config.", "--kv_transfer_config."}) {
      absl::string_view word = words[i];
      if (!absl::ConsumePrefix(&word, prefix)) continue;
      if (const size_t equals = word.find('='); equals != absl::string_view::npos) {
        flags.emplace_back(word.substr(0, equals), word.substr(equals + 1));
      } else {
        flags.emplace_back(word, i + 1 < words.size() ? words[i + 1] : "");
      }
    }
  }
  return flags;
}

// The KV-transfer configuration as the engine will see it. Null: there is none; no object: it
// cannot be read.
Json TransferConfig(std::span<const std::string> words) {
  const std::optional<std::string> text = Flag(words, "kv-transfer-config");
  Json config;
  if (text.has_value()) {
    config = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) return Json(*text);
  }
  for (const auto& [path, value] : DottedFlags(words)) {
    Json* at = &config;
    for (const absl::string_view name : absl::StrSplit(path, '.')) {
      if (!at->is_object()) *at = Json::object();
      at = &(*at)[std::string(name)];
    }
    const Json parsed = Json::parse(value, nullptr, /*allow_exceptions=*/false);
    *at = parsed.is_discarded() ? Json(value) : parsed;
  }
  return config;
}

Json ExtraOf(const EngineCommand& engine) {
  const Json none = Json::object();
  if (!engine.transfer.is_object()) return none;
  const Json extra = engine.transfer.value("kv_connector_extra_config", none);
  return extra.is_object() ? extra : none;
}

std::string VariableOf(const EngineCommand& engine, const std::string& name) {
  const auto found = engine.environment.find(name);
  return found == engine.environment.end() ? "" : found->second;
}

// What one worker asks for: the configuration's, the environment's, the connector's default.
uint64_t StagingBytes(const EngineCommand& engine) {
  const uint64_t given = Number(ExtraOf(engine), "staging_bytes");
  if (given > 0) return given;
  const uint64_t bytes =
      std::strtoull(VariableOf(engine, "KVARVE_STAGING_BYTES").c_str(), nullptr, 10);
  return bytes > 0 ? bytes : kStagingBytesDefault;
}

bool IsOn(const std::string& word) {
  return !word.empty() && word != "0" && word != "false" && word != "no" && word != "off";
}

void Add(Findings* findings, std::string check, Level level, std::string text,
         std::string action = "") {
  findings->push_back({"engine", std::move(check), level, std::move(text), std::move(action)});
}

void CheckTransferConfig(const EngineCommand& engine, Findings* findings) {
  const std::string fix = "kvarve config vllm prints the right one";
  const Json& config = engine.transfer;
  if (config.is_null()) {
    const bool is_on = IsOn(VariableOf(engine, "KVARVE"));
    Add(findings, "connector", is_on ? Level::kOk : Level::kProblem,
        is_on ? "on by KVARVE=1" : "neither --kv-transfer-config nor KVARVE=1",
        is_on ? "" : "the engine does not use kvarve: " + fix);
    return;
  }
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
  const std::string policy = TextOf(config, "kv_load_failure_policy");
  const bool allows_fail = TextOf(ExtraOf(engine), "allow_fail_policy") == "true";
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

// The daemon that the engine will ask must be the one that is looked at.
void CheckEndpoint(const EngineCommand& engine, const std::string& examined, Findings* findings) {
  std::string endpoint = TextOf(ExtraOf(engine), "endpoint");
  if (endpoint.empty()) endpoint = VariableOf(engine, "KVARVE_ENDPOINT");
  if (endpoint.empty()) endpoint = kDefaultEndpoint;
  const bool same = endpoint == examined;
  Add(findings, "endpoint", same ? Level::kOk : Level::kProblem,
      same ? endpoint : endpoint + "; doctor looked at " + examined,
      same ? "" : "look at the engine's: kvarve --endpoint " + endpoint + " doctor ...");
}

void CheckElementType(std::span<const std::string> words, Findings* findings) {
  const std::string type = Flag(words, "kv-cache-dtype").value_or("auto");
  if (type == "auto" || type == "bfloat16" || type == "float16" || type == "float32") return;
  if (!type.starts_with("fp8") || type == "fp8_per_token_head") {
    Add(findings, "--kv-cache-dtype", Level::kProblem,
        type + ": pages with scales of their own turn the cache off",
        "use auto, bfloat16, float16 or fp8");
  } else if (Flag(words, "calculate-kv-scales").has_value()) {
    Add(findings, "--calculate-kv-scales", Level::kProblem,
        "scales that each engine computes for itself turn the cache off",
        "leave it out: the checkpoint's scales are used");
  } else {
    Add(findings, "--kv-cache-dtype", Level::kOk, type + ", with the checkpoint's scales");
  }
}

void CheckFlags(std::span<const std::string> words, Findings* findings) {
  CheckElementType(words, findings);
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
  if (Flag(words, "kv-offloading-size").has_value() && TransferConfig(words).is_null()) {
    Add(findings, "--kv-offloading-size", Level::kProblem,
        "the engine's own offloading takes the connector's place",
        "leave it out, or set --kv-transfer-config");
  }
}

}  // namespace

EngineCommand ParseEngineCommand(std::vector<std::string> words,
                                 std::map<std::string, std::string> environment) {
  size_t first = 0;
  if (!words.empty() && words[0].substr(words[0].rfind('/') + 1) == "env") {
    ++first;
    while (first < words.size() && words[first].starts_with("-")) {
      if (words[first] == "-i" || words[first] == "--ignore-environment") environment.clear();
      if (words[first] == "-u" && first + 1 < words.size()) environment.erase(words[++first]);
      ++first;
    }
  }
  for (; first < words.size(); ++first) {
    const size_t equals = words[first].find('=');
    if (words[first].starts_with("-") || equals == std::string::npos) break;
    environment[words[first].substr(0, equals)] = words[first].substr(equals + 1);
  }
  words.erase(words.begin(), words.begin() + static_cast<ptrdiff_t>(first));
  Json transfer = TransferConfig(words);
  return {std::move(words), std::move(environment), std::move(transfer)};
}

Json ConnectorSettings(const EngineCommand& engine) {
  Json variables = Json::object();
  for (const auto& [name, value] : engine.environment) {
    if (name.starts_with("KVARVE_")) variables[name] = value;
  }
  return {{"extra", ExtraOf(engine)}, {"environment", std::move(variables)}};
}

void CheckEngineCommand(const EngineCommand& engine, const std::string& examined,
                        Findings* findings) {
  CheckTransferConfig(engine, findings);
  CheckEndpoint(engine, examined, findings);
  CheckFlags(engine.words, findings);
  Add(findings, "PYTHONHASHSEED", Level::kOk,
      engine.environment.contains("PYTHONHASHSEED") ? "set; kvarve does not need it"
                                                    : "not set, and not needed");
}

void CheckEngineSize(const EngineCommand& engine, uint32_t engines, const Json& status,
                     Findings* findings) {
  const std::span<const std::string> words = engine.words;
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

  const uint64_t own = StagingBytes(engine);
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
