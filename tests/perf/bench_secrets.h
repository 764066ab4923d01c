// A folder with what a daemon and its clients over gRPC show to each other: "token", "ca.pem",
// "server.pem" and "client.pem" with their ".key"; gone with the object.
//
// THREADS: one owner.  BLOCKS: on files.
#ifndef KVARVE_TESTS_PERF_BENCH_SECRETS_H_
#define KVARVE_TESTS_PERF_BENCH_SECRETS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace kvarve::perf {

class BenchSecrets {
 public:
  static absl::StatusOr<std::unique_ptr<BenchSecrets>> Make();
  ~BenchSecrets();
  BenchSecrets(const BenchSecrets&) = delete;
  BenchSecrets& operator=(const BenchSecrets&) = delete;

  const std::string& folder() const { return folder_; }
  std::string File(const std::string& name) const;

 private:
  explicit BenchSecrets(std::string folder);
  void Write(const std::string& name, const std::string& text) const;
  const std::string folder_;
};

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_BENCH_SECRETS_H_
