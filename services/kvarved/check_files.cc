#include "services/kvarved/check_files.h"

#include "absl/strings/str_format.h"
#include "services/auth/auth_files.h"
#include "services/auth/grpc_credentials.h"

namespace kvarve {

std::vector<std::string> BadFiles(const Config& config, const DaemonOptions& options) {
  std::vector<std::string> bad;
  if (!options.rpc.has_value()) return bad;
  const AuthOptions& auth = options.rpc->auth;
  AuthFiles files(auth.token_file, auth.keys_file, auth.revocations_file);
  for (const std::vector<FileFault>& faults : {TlsFaults(options.rpc->transport), files.Load()}) {
    for (const FileFault& fault : faults) {
      bad.push_back(absl::StrFormat("%s (%s): %s", fault.setting, config.Origin(fault.setting),
                                    fault.why.message()));
    }
  }
  return bad;
}

}  // namespace kvarve
