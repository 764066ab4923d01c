// vLLM's KV-transfer configuration for kvarve's connector.
// THREADS: any.
#ifndef KVARVE_CLIENT_CLI_VLLM_CONFIG_H_
#define KVARVE_CLIENT_CLI_VLLM_CONFIG_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/context.h"

namespace kvarve::cli {

inline constexpr char kConnectorName[] = "KvarveConnector";
inline constexpr char kConnectorModule[] = "kvarve.connectors.vllm.connector";

// The value of --kv-transfer-config. `settings` are "name=value" of the connector; values that are
// JSON (numbers, true, false) stay so. InvalidArgument: no "=", or an empty name.
absl::StatusOr<Json> KvTransferConfig(const std::string& endpoint,
                                      std::span<const std::string> settings);
// The same without a flag: "KVARVE=1" and a variable for each setting that is not the default.
std::vector<std::string> VllmEnvironment(const Json& config);
// Both, for people.
std::string VllmText(const Json& config, std::span<const std::string> environment);

// In single quotes where a shell needs them.
std::string ShellQuoted(const std::string& text);

}  // namespace kvarve::cli

#endif  // KVARVE_CLIENT_CLI_VLLM_CONFIG_H_
