#include "storage/base/edit_distance.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace kvarve {
namespace {

constexpr size_t kNearEdits = 4;
constexpr size_t kLongestWord = 128;

}  // namespace

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substitute = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substitute, row[j] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

std::string NearestWord(std::string_view word, std::span<const std::string> known) {
  std::string nearest;
  size_t least = kNearEdits + 1;
  for (const std::string& name : known) {
    const size_t edits = EditDistance(word.substr(0, kLongestWord), name);
    if (edits < least && 2 * edits < name.size()) {
      least = edits;
      nearest = name;
    }
  }
  return nearest;
}

}  // namespace kvarve
