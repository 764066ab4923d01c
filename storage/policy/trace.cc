#include "storage/policy/trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace kvarve {
namespace {

// The ids of a line, in order. False: not well formed.
bool ParseIds(std::string_view line, std::vector<uint64_t>* ids) {
  const char* at = line.data();
  const char* const end = at + line.size();
  while (at != end) {
    if (*at == ' ') {
      ++at;
      continue;
    }
    uint64_t first = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc()) return false;
    uint64_t last = first;
    if (parsed.ptr != end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
      if (parsed.ec != std::errc()) return false;
    }
    if (last < first || last - first >= kMaxTraceRequestBlocks - ids->size()) return false;
    for (uint64_t id = first; id <= last; ++id) ids->push_back(id);
    at = parsed.ptr;
    if (at != end && *at != ' ') return false;
  }
  return true;
}

// The number before the next comma, which goes too.
template <typename Number>
bool TakeNumber(std::string_view* line, Number* number) {
  const size_t comma = line->find(',');
  if (comma == std::string_view::npos) return false;
  const auto parsed = std::from_chars(line->data(), line->data() + comma, *number);
  if (parsed.ec != std::errc() || parsed.ptr != line->data() + comma) return false;
  line->remove_prefix(comma + 1);
  return true;
}

struct Line {
  double seconds = 0;
  uint32_t prompt_tokens = 0;
  uint32_t response_tokens = UINT32_MAX;
  std::vector<uint64_t> ids;
};

bool ParseLine(std::string_view text, Line* line) {
  *line = Line{};
  if (text.find(',') != std::string_view::npos) {
    if (!TakeNumber(&text, &line->seconds) || !std::isfinite(line->seconds)) return false;
    if (!TakeNumber(&text, &line->prompt_tokens)) return false;
    if (!TakeNumber(&text, &line->response_tokens)) return false;
  }
  return ParseIds(text, &line->ids);
}

}  // namespace

void TraceBuilder::Add(double seconds, uint32_t prompt_tokens, uint32_t response_tokens,
                       std::span<const uint64_t> ids) {
  if (trace_.requests.empty()) first_seconds_ = seconds;
  const double before = trace_.requests.empty() ? 0 : trace_.requests.back().seconds;
  TraceRequest& request = trace_.requests.emplace_back();
  request.seconds = std::max(before, seconds - first_seconds_);
  request.prompt_tokens = prompt_tokens;
  request.response_tokens = response_tokens;
  request.blocks.reserve(ids.size());
  uint32_t parent = Trace::kRoot;
  for (const uint64_t id : ids) {
    const auto [block, is_new] = blocks_.try_emplace(std::make_pair(parent, id),
                                                     static_cast<uint32_t>(trace_.parents.size()));
    if (is_new) {
      trace_.parents.push_back(parent);
      const auto number = ids_.try_emplace(id, static_cast<uint32_t>(ids_.size())).first->second;
      trace_.ids.push_back(number);
    }
    request.blocks.push_back(parent = block->second);
  }
  trace_.references += ids.size();
}

Trace TraceBuilder::Finish() {
  trace_.unique_ids = static_cast<uint32_t>(ids_.size());
  return std::move(trace_);
}

absl::StatusOr<Trace> ParseTrace(std::string_view text) {
  TraceBuilder builder;
  Line line;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t length = std::min(text.find('\n'), text.size());
    std::string_view row = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (row.empty() || row.front() == '#' || row.starts_with("timestamp,")) continue;
    if (!ParseLine(row, &line)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "trace line %d: expected seconds,prompt tokens,response tokens,ids, or ids and ranges "
          "like \"0 14-27\"",
          number));
    }
    builder.Add(line.seconds, line.prompt_tokens, line.response_tokens, line.ids);
  }
  return builder.Finish();
}

}  // namespace kvarve
