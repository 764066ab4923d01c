#include "client/cpp/outbox.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "client/local/messages.h"

namespace kvarve::client {

using local::Builder;
using local::Type;

void Outbox::CountOwed() {
  size_t byes = 0;
  for (const auto& session : earlier_) byes += session->users.load() == 0 ? 1 : 0;
  owed_.store(leases_.size() + unmapped_.size() + byes, std::memory_order_relaxed);
}

void Outbox::Begin(std::shared_ptr<Session> session) {
  MutexLock lock(&mutex_);
  // A daemon's successor knows neither the sessions nor the leases of its predecessor.
  std::erase_if(earlier_,
                [&](const auto& one) { return one->incarnation != session->incarnation; });
  std::erase_if(grants_,
                [&](const auto& one) { return one.second->incarnation != session->incarnation; });
  current_ = std::move(session);
  CountOwed();
}

void Outbox::End(bool left) {
  MutexLock lock(&mutex_);
  if (current_ != nullptr && !left) earlier_.push_back(std::move(current_));
  if (earlier_.size() > kMaxEarlierSessions) earlier_.pop_front();
  current_ = nullptr;
  leases_.clear();
  unmapped_.clear();
  CountOwed();
}

void Outbox::EndView(Session* session, uint64_t lease) {
  MutexLock lock(&mutex_);
  session->users.fetch_sub(1);
  if (lease != 0 && session == current_.get()) leases_.push_back(lease);
  CountOwed();
}

void Outbox::EndLease(const Session* session, uint64_t lease) {
  MutexLock lock(&mutex_);
  if (lease != 0 && session == current_.get()) leases_.push_back(lease);
  CountOwed();
}

void Outbox::Unmapped(const Session* session, uint64_t chunk) {
  MutexLock lock(&mutex_);
  if (session == current_.get()) unmapped_.push_back(chunk);
  CountOwed();
}

bool Outbox::AddGrant(const std::shared_ptr<Session>& session, uint64_t lease) {
  MutexLock lock(&mutex_);
  if (grants_.size() >= kMaxGrants || !grants_.emplace(lease, session).second) return false;
  session->users.fetch_add(1);
  return true;
}

void Outbox::EndById(uint64_t lease) {
  MutexLock lock(&mutex_);
  const auto grant = grants_.find(lease);
  const bool of_current = grant == grants_.end() || grant->second == current_;
  if (grant != grants_.end()) {
    grant->second->users.fetch_sub(1);
    grants_.erase(grant);
  }
  if (of_current && current_ != nullptr && lease != 0) leases_.push_back(lease);
  CountOwed();
}

bool Outbox::FlushLeases(const std::function<absl::Status(std::string_view)>& send) {
  while (!leases_.empty()) {
    const size_t count = std::min(leases_.size(), local::kMaxLeasesPerRelease);
    Builder builder(Type::kRelease, 0);
    builder.Add(local::ReleaseBody{.leases = static_cast<uint32_t>(count)});
    builder.AddBytes(leases_.data(), count * sizeof(uint64_t));
    if (!send(std::move(builder).Finish()).ok()) return false;
    leases_.erase(leases_.begin(), leases_.begin() + static_cast<ptrdiff_t>(count));
  }
  return true;
}

void Outbox::Flush(const std::function<absl::Status(std::string_view)>& send) {
  MutexLock lock(&mutex_);
  if (current_ == nullptr) return;
  bool sending = FlushLeases(send);
  while (sending && !unmapped_.empty()) {
    const local::PoolDropBody body{.chunk = unmapped_.back()};
    sending = send(std::move(Builder(Type::kPoolDropped, 0).Add(body)).Finish()).ok();
    if (sending) unmapped_.pop_back();
  }
  for (auto it = earlier_.begin(); sending && it != earlier_.end();) {
    if ((*it)->users.load() != 0) {
      ++it;
      continue;
    }
    local::ByeBody body{.session = (*it)->id};
    std::memcpy(body.token, (*it)->token.data(), sizeof(body.token));
    sending = send(std::move(Builder(Type::kBye, 0).Add(body)).Finish()).ok();
    if (sending) it = earlier_.erase(it);
  }
  CountOwed();
}

}  // namespace kvarve::client
