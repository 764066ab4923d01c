#include "storage/base/log.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>

#include "storage/base/utf8.h"

namespace kvarve {
namespace {

constexpr size_t kMaxFieldBytes = 1024;  // a longer value is cut, and ends in "..."

std::atomic<LogLevel> min_level{LogLevel::kInfo};
std::atomic<LogFormat> log_format{LogFormat::kText};

constexpr const char* kTextLevels[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
constexpr const char* kJsonLevels[] = {"debug", "info", "warning", "error"};

// Appends `text` so that it is valid inside a JSON string and can end neither line nor quotes.
// Bytes that are no UTF-8 become U+FFFD.
void AppendEscaped(std::string& out, std::string_view text) {
  const bool cut = text.size() > kMaxFieldBytes;
  if (cut) {
    size_t end = kMaxFieldBytes;
    while (end > kMaxFieldBytes - 4 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
    text = text.substr(0, end);
  }
  while (!text.empty()) {
    const char c = text[0];
    size_t size = 1;
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else if ((size = Utf8Prefix(text)) > 0) {
      out.append(text.substr(0, size));
    } else {
      out += "\xEF\xBF\xBD";
      size = 1;
    }
    text.remove_prefix(size);
  }
  if (cut) out += "...";
}

void AppendQuoted(std::string& out, std::string_view text) {
  out += '"';
  AppendEscaped(out, text);
  out += '"';
}

// A value of plain characters stands without quotes.
void AppendTextValue(std::string& out, std::string_view text) {
  bool plain = !text.empty() && text.size() <= kMaxFieldBytes;
  for (const char c : text)
    plain = plain && c > ' ' && c < 0x7F && c != '"' && c != '=' && c != '\\';
  if (plain) {
    out.append(text);
  } else {
    AppendQuoted(out, text);
  }
}

std::string Timestamp() {  // RFC 3339, UTC, microseconds
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm utc{};
  ::gmtime_r(&now.tv_sec, &utc);
  char date[32], text[64];
  ::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text, sizeof(text), "%s.%06ldZ", date, now.tv_nsec / 1000);
  return text;
}

void WriteLine(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // a log that cannot be written stops nothing
    line.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

void SetLogLevel(LogLevel level) { min_level.store(level, std::memory_order_relaxed); }
void SetLogFormat(LogFormat format) { log_format.store(format, std::memory_order_relaxed); }
bool LogEnabled(LogLevel level) { return level >= min_level.load(std::memory_order_relaxed); }

void KvLog(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (!LogEnabled(level)) return;
  std::string line;
  if (log_format.load(std::memory_order_relaxed) == LogFormat::kJson) {
    line += "{\"ts\":\"" + Timestamp() + "\",\"level\":\"";
    line += kJsonLevels[static_cast<int>(level)];
    line += "\",\"event\":";
    AppendQuoted(line, event);
    for (const LogField& field : fields) {
      line += ',';
      AppendQuoted(line, field.first);
      line += ':';
      AppendQuoted(line, field.second);
    }
    line += "}\n";
  } else {
    line += Timestamp() + " " + kTextLevels[static_cast<int>(level)] + " ";
    AppendEscaped(line, event);
    for (const LogField& field : fields) {
      line += ' ';
      AppendEscaped(line, field.first);
      line += '=';
      AppendTextValue(line, field.second);
    }
    line += '\n';
  }
  WriteLine(line);  // one write: lines of several threads do not mix
}

}  // namespace kvarve
