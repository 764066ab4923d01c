// Where std::string_view meets Abseil. Some packages of Abseil have a string_view of their own, in
// newer ones it is std's: code that goes through these two compiles with both.
//   absl::InvalidArgumentError(ToAbsl(text));   std::string_view message = ToStd(status.message());
// THREADS: any.
#ifndef KVARVE_STORAGE_BASE_ABSEIL_H_
#define KVARVE_STORAGE_BASE_ABSEIL_H_

#include <string_view>

#include "absl/strings/string_view.h"

namespace kvarve {

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BASE_ABSEIL_H_
