#include <cctype>
#include <cstdlib>
#include <string_view>

#include "absl/strings/str_format.h"
#include "gpu/emulator/ptx/ptx_module.h"
#include "gpu/emulator/ptx/ptx_values.h"
#include "storage/base/status_macros.h"

namespace kvarve::ptx {
namespace {

std::string Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

// Splits at `separator`, not inside braces or brackets.
std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : separator;
    depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    if (i == text.size() || (c == separator && depth == 0)) {
      parts.push_back(Trim(text.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  return parts;
}

// The bytes of "… .b8 name[32]" or "… .u64 name", and its name.
struct Variable {
  std::string name;
  uint32_t bytes = 0, align = 1;
};
Variable VariableOf(const std::string& text) {
  Variable variable;
  std::string last;
  uint32_t element = 1;
  for (const std::string& word : Split(text, ' ')) {
    if (last == ".align") variable.align = std::strtoul(word.c_str(), nullptr, 10);
    if (word.size() > 2 && word[0] == '.' && std::isdigit(static_cast<unsigned char>(word[2])))
      element = std::strtoul(word.c_str() + 2, nullptr, 10) / 8;
    if (!word.empty()) last = word;
  }
  const size_t bracket = last.find('[');
  variable.name = last.substr(0, bracket);
  variable.bytes = element;
  if (bracket != std::string::npos)
    variable.bytes *= std::strtoul(last.c_str() + bracket + 1, nullptr, 10);
  variable.align = std::max(variable.align, element);
  return variable;
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  absl::StatusOr<Module> Parse() {
    std::string statement;
    while (at_ < text_.size()) {
      const char c = Next();
      if (c == '\n' && statement.rfind(".target", 0) == 0)
        module_.target = Trim(statement.substr(7));
      const bool directive = !statement.empty() && (statement.rfind(".version", 0) == 0 ||
                                                    statement.rfind(".target", 0) == 0 ||
                                                    statement.rfind(".address_size", 0) == 0);
      if (c == '\n' && directive) {
        statement.clear();
      } else if (c == '{') {
        KV_RETURN_IF_ERROR(ParseEntry(statement));
        statement.clear();
      } else if (c == ';') {
        return Bad("not understood outside of an entry: " + statement);
      } else if (!statement.empty() || !std::isspace(static_cast<unsigned char>(c))) {
        statement += c == '\n' || c == '\t' ? ' ' : c;
      }
    }
    return std::move(module_);
  }

 private:
  absl::Status Bad(const std::string& why) const {
    return absl::InvalidArgumentError(absl::StrFormat("PTX line %d: %s", line_, why));
  }

  // The next character, comments left out.
  char Next() {
    if (text_.compare(at_, 2, "//") == 0) {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      if (at_ == text_.size()) return '\n';
    }
    const char c = text_[at_++];
    if (c == '\n') ++line_;
    return c;
  }

  absl::Status ParseEntry(const std::string& head) {
    const size_t entry_at = head.find(".entry"), open = head.find('('), close = head.find(')');
    if (entry_at == std::string::npos || open == std::string::npos || close == std::string::npos)
      return Bad("only entries with parameters: " + head);
    Entry entry;
    entry.name = Trim(head.substr(entry_at + 6, open - entry_at - 6));
    symbols_.clear();
    registers_ = {
        {"%tid.x", kTidX}, {"%ntid.x", kNtidX}, {"%ctaid.x", kCtaidX}, {"%nctaid.x", kNctaidX}};
    labels_.clear();
    branches_.clear();
    for (const std::string& text : Split(head.substr(open + 1, close - open - 1), ',')) {
      const Variable param = VariableOf(text);
      entry.param_bytes = (entry.param_bytes + param.align - 1) / param.align * param.align;
      symbols_[param.name] = entry.param_bytes;
      entry.param_bytes += param.bytes;
    }
    KV_RETURN_IF_ERROR(ParseBody(&entry));
    for (const auto& [index, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) return Bad("no label " + label);
      entry.code[index].target = found->second;
    }
    const std::string name = entry.name;
    if (!module_.entries.emplace(name, std::move(entry)).second) return Bad("twice: " + name);
    return absl::OkStatus();
  }

  absl::Status ParseBody(Entry* entry) {
    std::string statement;
    int statement_line = line_;
    for (int depth = 1; at_ < text_.size();) {
      const char c = Next();
      if (statement.empty()) {
        statement_line = line_;
        if (std::isspace(static_cast<unsigned char>(c))) continue;
        if (c == '{' || c == '}') {  // a scope; a {…} operand stands inside a statement
          depth += c == '{' ? 1 : -1;
          if (depth == 0) return absl::OkStatus();
          continue;
        }
      }
      if (c == ':' && statement.find_first_of(" \t[%") == std::string::npos) {
        labels_[statement] = static_cast<int>(entry->code.size());
        statement.clear();
      } else if (c == ';') {
        KV_RETURN_IF_ERROR(ParseStatement(Trim(statement), statement_line, entry));
        statement.clear();
      } else {
        statement += c == '\n' || c == '\t' ? ' ' : c;
      }
    }
    return Bad("the text ends inside " + entry->name);
  }

  absl::Status ParseStatement(const std::string& text, int line, Entry* entry) {
    if (text.rfind(".reg", 0) == 0 || text.rfind(".pragma", 0) == 0) return absl::OkStatus();
    if (text.rfind(".shared", 0) == 0) {
      const Variable shared = VariableOf(text);
      entry->shared_bytes = (entry->shared_bytes + shared.align - 1) / shared.align * shared.align;
      symbols_[shared.name] = entry->shared_bytes;
      entry->shared_bytes += shared.bytes;
      return absl::OkStatus();
    }
    Instruction instruction;
    instruction.line = line;
    instruction.text = text;
    std::string rest = text;
    if (rest[0] == '@') {
      const size_t space = rest.find(' ');
      instruction.guard_negated = rest[1] == '!';
      instruction.guard = Register(rest.substr(instruction.guard_negated ? 2 : 1,
                                               space - (instruction.guard_negated ? 2 : 1)),
                                   entry);
      rest = Trim(rest.substr(space));
    }
    const size_t space = rest.find(' ');
    const std::vector<std::string> parts = Split(rest.substr(0, space), '.');
    const std::string operands = space == std::string::npos ? "" : Trim(rest.substr(space));
    if (!FindHandler(parts, &instruction)) return Bad("no support for: " + text);
    if (instruction.flow == Flow::kBranch) {
      branches_.push_back({static_cast<int>(entry->code.size()), operands});
    } else if (!operands.empty()) {
      for (const std::string& operand : Split(operands, ',')) {
        if (instruction.operand_count == 5) return Bad("too many operands: " + text);
        KV_RETURN_IF_ERROR(ParseOperand(operand, &instruction,
                                        &instruction.operands[instruction.operand_count++], entry));
      }
    }
    // A result goes to a register; several, where the handler knows of them.
    const bool vectors = parts[0] == "ld" || parts[0] == "st" || parts[0] == "mov";
    const bool has_result = instruction.operand_count > 0 && parts[0] != "st" && parts[0] != "cp" &&
                            (instruction.flow == Flow::kNext || instruction.flow == Flow::kShuffle);
    if ((has_result && instruction.operands[0].reg == -1 && parts[0] != "membar") ||
        (instruction.element_count > 0 && !vectors) ||
        (instruction.element_count > 0 && parts[0] != "mov" &&
         instruction.element_count != instruction.vector)) {
      return Bad("operands not understood: " + text);
    }
    entry->code.push_back(std::move(instruction));
    return absl::OkStatus();
  }

  int Register(const std::string& name, Entry* entry) {
    const auto [found, added] = registers_.emplace(name, entry->registers);
    if (added) ++entry->registers;
    return found->second;
  }

  absl::Status ParseOperand(const std::string& text, Instruction* instruction, Operand* operand,
                            Entry* entry) {
    if (text.empty()) return Bad("an empty operand: " + instruction->text);
    if (text[0] == '{') {
      const std::vector<std::string> names = Split(text.substr(1, text.size() - 2), ',');
      if (names.size() > 4 || instruction->element_count > 0)
        return Bad("a vector of more than 4: " + text);
      for (size_t i = 0; i < names.size(); ++i) {
        if (names[i][0] != '%' && names[i] != "_")
          return Bad("a vector of other than registers: " + text);
        instruction->elements[i] = Register(names[i], entry);
      }
      instruction->element_count = static_cast<int>(names.size());
      operand->reg = kVectorOperand;
      return absl::OkStatus();
    }
    if (text[0] == '[') {
      const std::string inner = Trim(text.substr(1, text.size() - 2));
      const size_t sign = inner.find_first_of("+-", 1);
      KV_RETURN_IF_ERROR(ParseOperand(Trim(inner.substr(0, sign)), instruction, operand, entry));
      if (sign != std::string::npos)
        operand->value += std::strtoll(inner.c_str() + sign + (inner[sign] == '+'), nullptr, 0);
      return absl::OkStatus();
    }
    if (text[0] == '%') {
      operand->reg = Register(text.substr(0, text.find('|')), entry);
      // A register file that this file does not know is read as zero for ever: refuse.
      const size_t dot = text.find('.');
      if (dot != std::string::npos && operand->reg >= kSpecialRegisters)
        return Bad("no support for register " + text);
      return absl::OkStatus();
    }
    if (text[0] == '0' && text.size() > 2 && (text[1] == 'f' || text[1] == 'F')) {
      operand->value = std::strtoul(text.c_str() + 2, nullptr, 16);
      return absl::OkStatus();
    }
    if (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-') {
      operand->value = text[0] == '-'
                           ? static_cast<uint64_t>(std::strtoll(text.c_str(), nullptr, 0))
                           : std::strtoull(text.c_str(), nullptr, 0);
      return absl::OkStatus();
    }
    const auto symbol = symbols_.find(text);
    if (symbol == symbols_.end()) return Bad("unknown symbol " + text);
    operand->value = symbol->second;
    return absl::OkStatus();
  }

  const std::string& text_;
  size_t at_ = 0;
  int line_ = 1;
  Module module_;
  std::map<std::string, uint64_t> symbols_;
  std::map<std::string, int> registers_, labels_;
  std::vector<std::pair<int, std::string>> branches_;
};

}  // namespace

bool AccessWords(const std::vector<std::string>& parts, Instruction* i) {
  for (size_t k = 1; k < parts.size(); ++k) {
    const std::string& word = parts[k];
    if (word == "global") {
      i->space = Space::kGlobal;
    } else if (word == "shared") {
      i->space = Space::kShared;
    } else if (word == "param") {
      i->space = Space::kParam;
    } else if (word == "v2" || word == "v4") {
      i->vector = static_cast<uint8_t>(word[1] - '0');
    } else if (word != "release" && word != "relaxed" && word != "sys" && word != "gpu" &&
               word != "add" && TypeOf(word).kind == 0) {
      return false;
    }
  }
  return true;
}

absl::StatusOr<Module> ParseModule(const std::string& text) { return Parser(text).Parse(); }

}  // namespace kvarve::ptx
