// A small file as text. THREADS: any.  BLOCKS: on the file.
#ifndef KVARVE_STORAGE_BASE_READ_FILE_H_
#define KVARVE_STORAGE_BASE_READ_FILE_H_

#include <cstddef>
#include <string>

namespace kvarve {

// Reads from `fd` into `text` until the end of the file, or one byte more than `max_bytes`: then it
// is longer. False: errno says why.
bool ReadToEnd(int fd, size_t max_bytes, std::string* text);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BASE_READ_FILE_H_
