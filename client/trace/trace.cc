#include "client/trace/trace.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "storage/base/units.h"

namespace kvarve {
namespace {

// "00-" trace (32) "-" span (16) "-" flags (2); later versions may have more behind.
constexpr size_t kTraceBegin = 3, kTraceBytes = 32, kSpanBytes = 16, kTraceparentBytes = 55;

thread_local const TraceScope* g_scope = nullptr;

bool IsHex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}
bool IsZero(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c == '0'; });
}

}  // namespace

std::string_view TraceOf(std::string_view traceparent) {
  if (traceparent.size() < kTraceparentBytes) return {};
  const std::string_view version = traceparent.substr(0, 2);
  const std::string_view trace = traceparent.substr(kTraceBegin, kTraceBytes);
  const std::string_view span = traceparent.substr(kTraceBegin + kTraceBytes + 1, kSpanBytes);
  const std::string_view flags = traceparent.substr(kTraceparentBytes - 2, 2);
  const bool has_dashes = traceparent[kTraceBegin - 1] == '-' &&
                          traceparent[kTraceBegin + kTraceBytes] == '-' &&
                          traceparent[kTraceparentBytes - 3] == '-';
  const bool ends = traceparent.size() == kTraceparentBytes ||
                    (version != "00" && traceparent[kTraceparentBytes] == '-');
  if (!has_dashes || !ends || version == "ff" || !IsHex(version) || !IsHex(trace) || !IsHex(span) ||
      !IsHex(flags) || IsZero(trace) || IsZero(span)) {
    return {};
  }
  return traceparent.substr(kTraceBegin, kTraceBytes + 1 + kSpanBytes);
}

// The kernel's numbers: those of a generator of our own would come twice after a fork.
std::string NewTraceparent() {
  std::array<uint8_t, (kTraceBytes + kSpanBytes) / 2> ids{};
  // Never less than so few bytes; were it ever nothing, the ids would still be some.
  if (::getrandom(ids.data(), ids.size(), 0) < 0) ids.fill(1);
  const std::string hex = ToHex(ids);
  return "00-" + hex.substr(0, kTraceBytes) + "-" + hex.substr(kTraceBytes) + "-00";
}

TraceScope::TraceScope(std::string traceparent)
    : traceparent_(TraceOf(traceparent).empty() ? std::string() : std::move(traceparent)),
      outer_(g_scope) {
  if (!traceparent_.empty()) g_scope = this;
}

TraceScope::~TraceScope() { g_scope = outer_; }

std::string_view TraceScope::Current() {
  return g_scope == nullptr ? std::string_view() : g_scope->traceparent_;
}

}  // namespace kvarve
