// W3C trace context of calls on daemons of other hosts: their logs name the trace of a slow call.
#ifndef KVARVE_CLIENT_TRACE_TRACE_H_
#define KVARVE_CLIENT_TRACE_TRACE_H_

#include <string>
#include <string_view>

namespace kvarve {

// The trace's and the span's id, "0af7…319c-b7ad…3331", of a traceparent; empty: it is not one.
std::string_view TraceOf(std::string_view traceparent);
// A new one, not sampled.
std::string NewTraceparent();

// While it lives, the calls that its thread makes carry its traceparent; an inner one wins. What is
// no traceparent is ignored, as the recommendation has it. Calls outside of any carry a new one
// each. THREADS: the one that made it.
class TraceScope {
 public:
  explicit TraceScope(std::string traceparent);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

  // Of this thread's calls now; empty: none was given.
  static std::string_view Current();

 private:
  const std::string traceparent_;
  const TraceScope* const outer_;
};

}  // namespace kvarve

#endif  // KVARVE_CLIENT_TRACE_TRACE_H_
