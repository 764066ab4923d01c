// KV_RETURN_IF_ERROR, KV_ASSIGN_OR_RETURN, KV_CHECK.
// A programmer's error ends the process (KV_CHECK, also in release); everything else is an
// absl::Status.
// THREADS: any.
#ifndef KVARVE_STORAGE_BASE_STATUS_MACROS_H_
#define KVARVE_STORAGE_BASE_STATUS_MACROS_H_

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define KV_CONCAT_INNER(a, b) a##b
#define KV_CONCAT(a, b) KV_CONCAT_INNER(a, b)

#define KV_RETURN_IF_ERROR(expr)             \
  do {                                       \
    ::absl::Status kv_status_ = (expr);      \
    if (!kv_status_.ok()) return kv_status_; \
  } while (false)

#define KV_ASSIGN_OR_RETURN(lhs, expr) \
  KV_ASSIGN_OR_RETURN_IMPL(KV_CONCAT(kv_or_, __LINE__), lhs, expr)
#define KV_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return tmp.status();            \
  lhs = std::move(tmp).value()

#define KV_CHECK(cond)                                                                 \
  do {                                                                                 \
    if (__builtin_expect(!(cond), 0)) {                                                \
      std::fprintf(stderr, "%s:%d: KV_CHECK failed: %s\n", __FILE__, __LINE__, #cond); \
      std::abort();                                                                    \
    }                                                                                  \
  } while (false)

#endif  // KVARVE_STORAGE_BASE_STATUS_MACROS_H_
