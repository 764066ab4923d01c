// A network for this process and its children: a loopback that nobody else's settings reach.
#ifndef KVARVE_TESTS_PERF_OWN_NETWORK_H_
#define KVARVE_TESTS_PERF_OWN_NETWORK_H_

#include <string>

namespace kvarve::perf {

// Moves to a network namespace of its own, whose TCP connections begin under `cubic`, Linux's
// default: what a machine is set to (BBR paces even a loopback) would decide rows otherwise. That
// takes CAP_SYS_ADMIN and CAP_NET_ADMIN, and `cubic` a /proc/sys that can be written; without,
// everything stays as it is. Returns what it came to, for the reader.
// REQUIRES: no other thread yet, for those would stay.
std::string EnterOwnNetwork();

}  // namespace kvarve::perf

#endif  // KVARVE_TESTS_PERF_OWN_NETWORK_H_
