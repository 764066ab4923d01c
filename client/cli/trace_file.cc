#include "client/cli/trace_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "storage/policy/access_log.h"

namespace kvarve::cli {
namespace {

using nlohmann::json;

// Seconds. Numbers are milliseconds; texts are nanoseconds.
std::optional<double> SecondsOf(const json& timestamp) {
  if (timestamp.is_number()) return timestamp.get<double>() / 1e3;
  if (!timestamp.is_string()) return std::nullopt;
  const auto& text = timestamp.get_ref<const std::string&>();
  int64_t nanos = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), nanos);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return static_cast<double>(nanos) / 1e9;
}

uint32_t TokensOf(const json& request, const char* name, uint32_t unknown) {
  const auto found = request.find(name);
  if (found == request.end() || !found->is_number_unsigned()) return unknown;
  return static_cast<uint32_t>(std::min<uint64_t>(found->get<uint64_t>(), UINT32_MAX - 1));
}

bool AddLine(std::string_view line, std::vector<uint64_t>* ids, TraceBuilder* builder) {
  const json request = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!request.is_object()) return false;
  const auto hash_ids = request.find("hash_ids");
  if (hash_ids == request.end() || !hash_ids->is_array()) return false;
  if (hash_ids->size() > kMaxTraceRequestBlocks) return false;
  ids->clear();
  for (const json& id : *hash_ids) {
    if (!id.is_number_integer()) return false;
    ids->push_back(id.get<uint64_t>());
  }
  const auto timestamp = request.find("timestamp");
  const std::optional<double> seconds =
      timestamp == request.end() ? std::optional<double>(0) : SecondsOf(*timestamp);
  if (!seconds.has_value() || !std::isfinite(*seconds)) return false;
  builder->Add(*seconds, TokensOf(request, "input_length", 0),
               TokensOf(request, "output_length", UINT32_MAX), *ids);
  return true;
}

}  // namespace

absl::StatusOr<Trace> ParseTraceFile(std::string_view text) {
  if (!text.starts_with('{')) return ParseTrace(text);
  TraceBuilder builder;
  std::vector<uint64_t> ids;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t length = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    if (line.empty() || line == "\r") continue;
    if (!AddLine(line, &ids, &builder)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "trace line %d: expected an object with \"timestamp\" and \"hash_ids\"", number));
    }
  }
  return builder.Finish();
}

absl::StatusOr<Trace> ReadTraceFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError("cannot read " + path);
  std::stringstream text;
  text << file.rdbuf();
  if (text.view().starts_with(kAccessLogMagic)) {
    auto log = TraceOfAccessLog(text.view());
    if (!log.ok()) return log.status();
    if (log->trace.references > 0) return std::move(log->trace);
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has %d accesses, and none from which a request can be told: clients name requests "
        "(request_id)",
        path, log->accesses));
  }
  auto trace = ParseTraceFile(text.view());
  if (trace.ok() && trace->references == 0)
    return absl::InvalidArgumentError(path + " has no blocks");
  return trace;
}

}  // namespace kvarve::cli
