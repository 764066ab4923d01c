// How far a mistyped word is from a known one. THREADS: any.
#ifndef KVARVE_STORAGE_BASE_EDIT_DISTANCE_H_
#define KVARVE_STORAGE_BASE_EDIT_DISTANCE_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace kvarve {

// Levenshtein's: single characters inserted, deleted, replaced. Takes |a| * |b| steps.
size_t EditDistance(std::string_view a, std::string_view b);

// The one of `known` that `word` was most likely meant to be; empty when none is within four
// edits and less than half of its length.
std::string NearestWord(std::string_view word, std::span<const std::string> known);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BASE_EDIT_DISTANCE_H_
