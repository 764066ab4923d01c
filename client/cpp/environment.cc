#include "client/cpp/environment.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace kvarve::client {
namespace {

std::string VariableOf(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

bool IsYes(std::string_view text) {
  constexpr std::string_view kWords[] = {"1", "true", "yes", "on"};
  return std::ranges::find(kWords, text) != std::end(kWords);
}

}  // namespace

void ResolveEndpoint(ClientOptions* options) {
  if (!options->endpoint.empty()) return;
  options->endpoint = VariableOf("KVARVE_ENDPOINT");
  if (options->endpoint.empty()) {
    options->endpoint = kDefaultEndpoint;
    return;
  }
  const std::pair<const char*, std::string*> credentials[] = {
      {"KVARVE_TOKEN_FILE", &options->token_file},
      {"KVARVE_TLS_CA_FILE", &options->tls.ca_file},
      {"KVARVE_TLS_CERTIFICATE_FILE", &options->tls.certificate_file},
      {"KVARVE_TLS_KEY_FILE", &options->tls.key_file},
      {"KVARVE_TLS_SERVER_NAME", &options->tls.server_name}};
  for (const auto& [name, field] : credentials) {
    if (field->empty()) *field = VariableOf(name);
  }
  if (IsYes(VariableOf("KVARVE_INSECURE_PLAINTEXT_OFF_LOOPBACK"))) {
    options->insecure_plaintext_off_loopback = true;
  }
}

}  // namespace kvarve::client
