#include "services/local/counters.h"

#include <algorithm>

namespace kvarve {
namespace {

uint64_t Load(const Counters::Cell& cell) { return cell.load(std::memory_order_relaxed); }

}  // namespace

std::string_view SessionEndName(SessionEnd end) {
  constexpr std::array<std::string_view, kSessionEnds> kNames = {
      "bye", "hangup", "process_exit", "protocol", "slow_reader", "stop"};
  return kNames[static_cast<size_t>(end)];
}

std::string_view RefusalName(Refusal refusal) {
  constexpr std::array<std::string_view, kRefusals> kNames = {
      "not_allowed",   "sessions",  "sessions_of_uid", "ended_of_process",  "descriptors",
      "hello_timeout", "bad_hello", "version",         "sessions_of_tenant"};
  return kNames[static_cast<size_t>(refusal)];
}

std::string_view RequestTypeName(size_t type) {
  switch (type) {
    case 1:
      return "hello";
    case 3:
      return "open_namespace";
    case 5:
      return "lookup";
    case 7:
      return "acquire";
    case 9:
      return "release";
    case 10:
      return "put";
    case 12:
      return "read";
    case 14:
      return "touch";
    case 16:
      return "invalidate";
    case 18:
      return "report_corrupt";
    case 20:
      return "sync";
    case 22:
      return "admin";
    case 26:
      return "pool_dropped";
    case 27:
      return "bye";
    default:
      return "unknown";
  }
}

Counters::Tenant& Counters::Of(const std::string& tenant) {
  MutexLock lock(&mutex_);
  return of_tenant_[tenant];
}

void Counters::Request(size_t type, bool ok, int64_t nanos) {
  RequestCells& cells = requests_[type < kRequestTypes ? type : 0];
  Add(ok ? cells.ok : cells.failed);
  const int64_t micros = nanos / 1000;
  Add(cells.total_micros, static_cast<uint64_t>(micros));
  const auto bound =
      std::lower_bound(kLatencyBoundsMicros.begin(), kLatencyBoundsMicros.end(), micros);
  Add(cells.buckets[bound - kLatencyBoundsMicros.begin()]);
}

void Counters::CopyTo(LocalStats* stats) const {
  stats->sessions_opened = Load(sessions_opened);
  stats->malformed = Load(malformed);
  stats->put_bytes = Load(put_bytes);
  stats->read_bytes = Load(read_bytes);
  stats->granted_bytes = Load(granted_bytes);
  stats->pool_adds = Load(pool_adds);
  stats->pool_drops = Load(pool_drops);
  stats->chunks_forgotten = Load(chunks_forgotten);
  stats->slow_requests = Load(slow_requests);
  for (size_t i = 0; i < kSessionEnds; ++i) stats->session_ends[i] = Load(ends_[i]);
  for (size_t i = 0; i < kRefusals; ++i) stats->refusals[i] = Load(refusals_[i]);
  for (size_t i = 0; i < kRequestTypes; ++i) {
    RequestStats& out = stats->requests[i];
    out.ok = Load(requests_[i].ok);
    out.failed = Load(requests_[i].failed);
    out.total_micros = Load(requests_[i].total_micros);
    for (size_t b = 0; b < out.buckets.size(); ++b) out.buckets[b] = Load(requests_[i].buckets[b]);
  }
  MutexLock lock(&mutex_);
  for (const auto& [tenant, of] : of_tenant_) {
    stats->requests_of_tenant[tenant] = {Load(of.ok), Load(of.failed), Load(of.put_bytes),
                                         Load(of.read_bytes), Load(of.granted_bytes)};
  }
}

}  // namespace kvarve
