#include "client/identity/revocations.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/identity/token.h"
#include "storage/base/units.h"

namespace kvarve {
namespace {

constexpr size_t kFingerprintDigits = 64;
constexpr std::string_view kSpaces = " \t\r";

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = line.find_first_not_of(kSpaces);
    if (begin == line.npos) return words;
    line.remove_prefix(begin);
    const size_t end = std::min(line.find_first_of(kSpaces), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

bool AddToken(const std::vector<std::string_view>& words, Revocations* list) {
  const std::string_view id = words[1];
  if (id.size() > kMaxTokenIdBytes || words.size() > 3 ||
      !std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 0x7f; })) {
    return false;
  }
  int64_t expires = 0;
  if (words.size() == 3) {
    const std::string_view text = words[2];
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), expires);
    if (error != std::errc() || end != text.data() + text.size() || expires < 0) return false;
  }
  // The later end counts, and no end the most.
  const auto [found, is_new] = list->tokens.emplace(id, expires);
  if (!is_new) {
    found->second = found->second == 0 || expires == 0 ? 0 : std::max(found->second, expires);
  }
  return true;
}

bool AddCertificate(const std::vector<std::string_view>& words, Revocations* list) {
  if (words.size() != 2) return false;
  std::string digits;
  for (const char c : words[1]) {
    if (c == ':') continue;
    digits.push_back(c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  if (digits.size() != kFingerprintDigits || !FromHex(digits).ok()) return false;
  list->certificates.insert(std::move(digits));
  return true;
}

}  // namespace

absl::StatusOr<Revocations> ParseRevocations(std::string_view text) {
  if (text.size() > kMaxRevocationBytes) {
    return absl::InvalidArgumentError(absl::StrFormat("beyond %d bytes", kMaxRevocationBytes));
  }
  Revocations list;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = Words(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty() || words[0].starts_with('#')) continue;
    const bool good =
        words.size() >= 2 && (words[0] == "token"         ? AddToken(words, &list)
                              : words[0] == "certificate" ? AddCertificate(words, &list)
                                                          : false);
    if (!good) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "line %d is neither \"token ID [EXPIRES]\" nor \"certificate SHA256\"", number));
    }
    if (list.tokens.size() + list.certificates.size() > kMaxRevocations) {
      return absl::InvalidArgumentError(absl::StrFormat("more than %d entries", kMaxRevocations));
    }
  }
  return list;
}

std::string RevocationsText(const Revocations& revocations, int64_t now_seconds) {
  std::string text = "# Tokens and certificates that kvarved no longer takes.\n";
  for (const auto& [id, expires] : revocations.tokens) {
    if (expires != 0 && expires < now_seconds) continue;
    text += "token " + id + (expires != 0 ? absl::StrFormat(" %d", expires) : "") + "\n";
  }
  for (const std::string& fingerprint : revocations.certificates) {
    text += "certificate " + fingerprint + "\n";
  }
  return text;
}

}  // namespace kvarve
