// A file that a setting names and that cannot be used. Values: THREADS: any.
#ifndef KVARVE_SERVICES_AUTH_FILE_FAULT_H_
#define KVARVE_SERVICES_AUTH_FILE_FAULT_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace kvarve {

struct FileFault {
  std::string_view setting;  // "rpc.token_file"
  absl::Status why;          // names the file, and says what to do
};

// As who starts reads it.
inline absl::Status StatusOf(const FileFault& fault) {
  return {fault.why.code(), absl::StrFormat("%s: %s", fault.setting, fault.why.message())};
}

}  // namespace kvarve

#endif  // KVARVE_SERVICES_AUTH_FILE_FAULT_H_
