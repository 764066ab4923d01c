#include "client/cli/output.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"

namespace kvarve::cli {
namespace {

constexpr char kGap[] = "  ";

void Trim(std::string* line) {
  while (!line->empty() && line->back() == ' ') line->pop_back();
}

}  // namespace

Table::Table(std::vector<std::string> header, bool left) : left_(left) {
  rows_.push_back(std::move(header));
}

void Table::Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

std::string Table::Text() const {
  std::vector<size_t> widths(rows_.front().size());
  for (const std::vector<std::string>& row : rows_) {
    for (size_t i = 0; i < std::min(row.size(), widths.size()); ++i)
      widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (size_t i = 0; i < std::min(row.size(), widths.size()); ++i) {
      if (i > 0) line += kGap;
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += i == 0 || left_ ? row[i] + padding : padding + row[i];
    }
    Trim(&line);
    text += line + "\n";
  }
  return text;
}

std::string PairsText(const std::vector<std::pair<std::string, std::string>>& pairs) {
  size_t width = 0;
  for (const auto& pair : pairs) width = std::max(width, pair.first.size());
  std::string text;
  for (const auto& [name, value] : pairs)
    text += name + std::string(width - name.size(), ' ') + kGap + value + "\n";
  return text;
}

std::string CountText(uint64_t count) {
  std::string digits = std::to_string(count);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string PercentText(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void PrintJson(const Json& json) {
  Print(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

uint64_t Number(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

std::string TextOf(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

}  // namespace kvarve::cli
