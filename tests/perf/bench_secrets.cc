#include "tests/perf/bench_secrets.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "client/identity/certificate.h"
#include "storage/base/status_macros.h"

namespace kvarve::perf {

BenchSecrets::BenchSecrets(std::string folder) : folder_(std::move(folder)) {}

BenchSecrets::~BenchSecrets() {
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

absl::StatusOr<std::unique_ptr<BenchSecrets>> BenchSecrets::Make() {
  char folder[] = "/tmp/kvarve-bench-XXXXXX";
  if (::mkdtemp(folder) == nullptr) return absl::UnavailableError("mkdtemp failed");
  std::unique_ptr<BenchSecrets> secrets(new BenchSecrets(folder));
  secrets->Write("token", "a-token-of-the-bench-0123456789\n");
  const int64_t now = static_cast<int64_t>(::time(nullptr));
  const int64_t begin = now - 60, end = now + 86'400;
  KV_ASSIGN_OR_RETURN(const Issued authority, NewAuthority("bench", begin, end));
  KV_ASSIGN_OR_RETURN(
      const Issued server,
      IssueCertificate(authority, {"server", {"kvarve://peer"}, {"127.0.0.1"}, true, begin, end}));
  KV_ASSIGN_OR_RETURN(
      const Issued client,
      IssueCertificate(authority, {"client", {"kvarve://client/default"}, {}, false, begin, end}));
  secrets->Write("ca.pem", authority.certificate);
  for (const auto& [name, issued] : {std::pair("server", server), std::pair("client", client)}) {
    secrets->Write(std::string(name) + ".pem", issued.certificate);
    secrets->Write(std::string(name) + ".key", issued.key);
  }
  return secrets;
}

std::string BenchSecrets::File(const std::string& name) const { return folder_ + "/" + name; }

void BenchSecrets::Write(const std::string& name, const std::string& text) const {
  std::ofstream(File(name)) << text;
  ::chmod(File(name).c_str(), 0600);
}

}  // namespace kvarve::perf
