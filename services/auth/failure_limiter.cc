#include "services/auth/failure_limiter.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "storage/base/units.h"

namespace kvarve {
namespace {

constexpr size_t kMaxPeerBytes = 128;

// Text between the last bracket pair, or before the last colon.
std::string_view WithoutPort(std::string_view address) {
  const size_t colon = address.rfind(':');
  return colon == address.npos ? address : address.substr(0, colon);
}

std::string NetworkOfIpv6(std::string_view text) {
  for (const std::string_view open : {"%5B", "["}) {
    if (text.starts_with(open)) text.remove_prefix(open.size());
  }
  for (const std::string_view close : {"%5D", "]"}) {
    if (text.ends_with(close)) text.remove_suffix(close.size());
  }
  text = text.substr(0, std::min(text.find('%'), text.size()));  // a zone
  std::array<uint8_t, 16> bytes{};
  if (::inet_pton(AF_INET6, std::string(text).c_str(), bytes.data()) != 1) return std::string(text);
  return "ipv6:" + ToHex({bytes.data(), 8});
}

}  // namespace

std::string AddressOfPeer(std::string_view peer) {
  peer = peer.substr(0, kMaxPeerBytes);
  constexpr std::string_view kIpv4 = "ipv4:", kIpv6 = "ipv6:";
  if (peer.starts_with(kIpv4)) return std::string(WithoutPort(peer));
  if (peer.starts_with(kIpv6)) return NetworkOfIpv6(WithoutPort(peer.substr(kIpv6.size())));
  return std::string(peer);
}

int64_t FailureLimiter::Wait(const std::string& address) {
  MutexLock lock(&mutex_);
  const auto found = of_.find(address);
  if (found == of_.end()) return 0;
  const int64_t owed = found->second->full_at - clock_->NowNanos();
  return std::max<int64_t>(0, owed - (kBurst - 1) * kNanosPerFailure);
}

void FailureLimiter::Failed(const std::string& address) {
  const int64_t now = clock_->NowNanos();
  MutexLock lock(&mutex_);
  if (const auto found = of_.find(address); found != of_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
  } else {
    if (entries_.size() >= kMaxAddresses) {
      of_.erase(entries_.back().address);
      entries_.pop_back();
    }
    entries_.push_front({address, now});
    of_.emplace(entries_.front().address, entries_.begin());
  }
  Entry& entry = entries_.front();
  entry.full_at =
      std::min(std::max(entry.full_at, now) + kNanosPerFailure, now + kBurst * kNanosPerFailure);
}

size_t FailureLimiter::addresses() const {
  MutexLock lock(&mutex_);
  return entries_.size();
}

}  // namespace kvarve
