#include "storage/base/read_file.h"

#include <unistd.h>

#include <cerrno>

namespace kvarve {

bool ReadToEnd(int fd, size_t max_bytes, std::string* text) {
  text->assign(max_bytes + 1, '\0');
  size_t have = 0;
  while (have < text->size()) {
    const ssize_t n = ::read(fd, text->data() + have, text->size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  text->resize(have);
  return true;
}

}  // namespace kvarve
