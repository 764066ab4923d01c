// Telling text from bytes: what a client names itself or its model goes into JSON and logs.
// THREADS: any.
#ifndef KVARVE_STORAGE_BASE_UTF8_H_
#define KVARVE_STORAGE_BASE_UTF8_H_

#include <cstddef>
#include <string_view>

namespace kvarve {

// Bytes of the well-formed UTF-8 sequence (RFC 3629) that `text` begins with; 0 when it begins with
// none.
size_t Utf8Prefix(std::string_view text);
bool IsUtf8(std::string_view text);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BASE_UTF8_H_
