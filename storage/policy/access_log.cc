#include "storage/policy/access_log.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace kvarve {
namespace {

constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 16, kRecordBytes = 32;

template <typename Number>
void Append(Number number, std::string* to) {
  to->append(reinterpret_cast<const char*>(&number), sizeof(number));
}
template <typename Number>
Number Take(std::string_view* from) {
  Number number;
  std::memcpy(&number, from->data(), sizeof(number));
  from->remove_prefix(sizeof(number));
  return number;
}

// The next access; none: the log ends.
absl::StatusOr<std::optional<Access>> TakeAccess(std::string_view* log) {
  if (log->size() < kRecordBytes) return std::nullopt;
  Access access;
  access.micros = Take<uint64_t>(log);
  access.request = Take<uint64_t>(log);
  access.parent = Take<uint64_t>(log);
  access.first_depth = Take<uint32_t>(log);
  const auto count = Take<uint32_t>(log);
  if (count == 0 || count > kMaxTraceRequestBlocks || access.first_depth > kMaxTraceRequestBlocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "access log: a record of %d blocks at depth %d", count, access.first_depth));
  }
  if (log->size() / sizeof(uint64_t) < count) return std::nullopt;
  for (uint32_t i = 0; i < count; ++i) access.ids.push_back(Take<uint64_t>(log));
  return access;
}

// What the log says of a block: an id names its whole chain.
struct Known {
  uint64_t parent = 0;  // 0: a root, or not seen yet
  uint32_t depth = 0;
};
struct Request {
  uint64_t micros = 0;
  uint64_t deepest = 0;
  uint32_t depth = 0;
};

class Converter {
 public:
  void Add(const Access& access) {
    ++converted_.accesses;
    uint64_t parent = access.parent;
    uint32_t depth = access.first_depth;
    for (const uint64_t id : access.ids) {
      Known& known = blocks_[id];
      known.depth = depth++;
      if (parent != 0) known.parent = parent;
      parent = id;
    }
    if (access.request == 0) {
      ++converted_.unnamed;
      return;
    }
    const auto [it, is_new] = places_.try_emplace(access.request, requests_.size());
    if (is_new) requests_.push_back({access.micros, 0, 0});
    Request& request = requests_[it->second];
    if (request.deepest != 0 && request.depth >= depth) return;
    request.deepest = access.ids.back();
    request.depth = depth;
  }

  AccessLogTrace Finish() {
    TraceBuilder builder;
    std::vector<uint64_t> chain;
    for (const Request& request : requests_) {
      if (!ChainOf(request.deepest, &chain)) {
        ++converted_.incomplete;
        continue;
      }
      builder.Add(static_cast<double>(request.micros) / 1e6, 0, UINT32_MAX, chain);
    }
    converted_.trace = builder.Finish();
    return std::move(converted_);
  }

 private:
  // From the root; false: a part of it is not known.
  bool ChainOf(uint64_t deepest, std::vector<uint64_t>* chain) const {
    chain->clear();
    uint64_t id = deepest;
    for (uint32_t depth = blocks_.at(id).depth;; --depth) {
      const auto known = blocks_.find(id);
      if (known == blocks_.end() || known->second.depth != depth) return false;
      chain->push_back(id);
      if (depth == 0) break;
      id = known->second.parent;
    }
    std::reverse(chain->begin(), chain->end());
    return true;
  }

  AccessLogTrace converted_;
  absl::flat_hash_map<uint64_t, Known> blocks_;
  absl::flat_hash_map<uint64_t, size_t> places_;  // of requests
  std::vector<Request> requests_;
};

}  // namespace

std::string AccessLogHeader() {
  std::string header(kAccessLogMagic);
  Append(kVersion, &header);
  Append(uint32_t{0}, &header);
  return header;
}

void AppendAccess(const Access& access, std::string* log) {
  Append(access.micros, log);
  Append(access.request, log);
  Append(access.parent, log);
  Append(access.first_depth, log);
  Append(static_cast<uint32_t>(access.ids.size()), log);
  for (const uint64_t id : access.ids) Append(id, log);
}

absl::StatusOr<AccessLogTrace> TraceOfAccessLog(std::string_view log) {
  if (log.size() < kHeaderBytes || !log.starts_with(kAccessLogMagic))
    return absl::InvalidArgumentError("no access log: it has another begin");
  log.remove_prefix(kAccessLogMagic.size());
  const auto version = Take<uint32_t>(&log);
  if (version != kVersion || Take<uint32_t>(&log) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "access log of version %d; this program reads version %d", version, kVersion));
  }
  Converter converter;
  while (true) {
    absl::StatusOr<std::optional<Access>> access = TakeAccess(&log);
    if (!access.ok()) return access.status();
    if (!access->has_value()) return converter.Finish();
    converter.Add(**access);
  }
}

std::string TraceCsv(const Trace& trace) {
  std::string csv = "timestamp,input_length,output_length,hash_ids\n";
  for (const TraceRequest& request : trace.requests) {
    absl::StrAppendFormat(&csv, "%.6f,%d,%d,", request.seconds, request.prompt_tokens,
                          request.response_tokens);
    for (size_t i = 0; i < request.blocks.size(); ++i)
      absl::StrAppendFormat(&csv, "%s%d", i == 0 ? "" : " ", trace.ids[request.blocks[i]]);
    csv += '\n';
  }
  return csv;
}

}  // namespace kvarve
