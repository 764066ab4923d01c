#include "client/cpp/breaker.h"

namespace kvarve::client {

void Breaker::TimedOut(int64_t now_nanos) {
  if (open()) return;
  ++timeouts_;
  if (open()) next_probe_nanos_ = now_nanos + probe_interval_nanos_;
}

void Breaker::Answered() { timeouts_ = 0; }

bool Breaker::TakeProbe(int64_t now_nanos) {
  if (!open() || now_nanos < next_probe_nanos_) return false;
  next_probe_nanos_ = now_nanos + kResendIntervals * probe_interval_nanos_;
  return true;
}

}  // namespace kvarve::client
