// Structured logs: one line an event, "key=value" text or JSON, to stderr. No prompts, tokens or
// keys of users go in.   KvLog(LogLevel::kInfo, "session opened", {{"uid", "0"}, {"engine", id}});
// THREADS: any.  BLOCKS: on stderr.
#ifndef KVARVE_STORAGE_BASE_LOG_H_
#define KVARVE_STORAGE_BASE_LOG_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace kvarve {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };
enum class LogFormat { kText, kJson };

using LogField = std::pair<std::string_view, std::string>;

void SetLogLevel(LogLevel level);
void SetLogFormat(LogFormat format);
bool LogEnabled(LogLevel level);
void KvLog(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

}  // namespace kvarve

#endif  // KVARVE_STORAGE_BASE_LOG_H_
