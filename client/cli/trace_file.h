// Trace files as people have them: JSON lines with "timestamp" (milliseconds, or nanoseconds in a
// text, as the GMI trace has them), "input_length", "output_length" and "hash_ids" (Mooncake's and
// LMCache's form), or CSV (storage/policy/trace.h); and a daemon's access log
// (storage/policy/access_log.h). THREADS: any.  BLOCKS: reads the file.
#ifndef KVARVE_CLIENT_CLI_TRACE_FILE_H_
#define KVARVE_CLIENT_CLI_TRACE_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "storage/policy/trace.h"

namespace kvarve::cli {

// InvalidArgument names the line.
absl::StatusOr<Trace> ParseTraceFile(std::string_view text);
absl::StatusOr<Trace> ReadTraceFile(const std::string& path);

}  // namespace kvarve::cli

#endif  // KVARVE_CLIENT_CLI_TRACE_FILE_H_
