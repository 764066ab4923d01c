// Text for people and JSON for programs, on standard output.
// THREADS: one.
#ifndef KVARVE_CLIENT_CLI_OUTPUT_H_
#define KVARVE_CLIENT_CLI_OUTPUT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/context.h"

namespace kvarve::cli {

// Columns as wide as their widest cell, two spaces between them; numbers are the caller's to
// format. The first column is left-aligned, the others right-aligned unless `left` says otherwise.
class Table {
 public:
  explicit Table(std::vector<std::string> header, bool left = false);
  void Add(std::vector<std::string> cells);
  std::string Text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  bool left_;
};

// "capacity   1.00 GiB", one pair a line, values aligned.
std::string PairsText(const std::vector<std::pair<std::string, std::string>>& pairs);
// 1234567 -> "1,234,567".
std::string CountText(uint64_t count);
// A share of a whole: "12.5 %"; "-" of nothing.
std::string PercentText(uint64_t part, uint64_t whole);

void Print(const std::string& text);
void PrintJson(const Json& json);

// A number of an answer; 0 when the daemon does not send it.
uint64_t Number(const Json& json, const char* name);
// A text, or a number as text; empty when the daemon does not send it.
std::string TextOf(const Json& json, const char* name);

}  // namespace kvarve::cli

#endif  // KVARVE_CLIENT_CLI_OUTPUT_H_
