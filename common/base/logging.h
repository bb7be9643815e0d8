// Process-wide structured logging over spdlog: one line per message, text or JSON.
//
//   BATON_LOG_INFO("loaded {} in {:.1f} s", path, seconds);
//   BATON_RLOG_WARN(request_id, "producer {} failed: {}", name, status);   // adds the request id
//   BATON_LOG_EVERY_SEC(10, "falling back to local prefill: {}", reason);  // rate-limited warning
//
// Format strings are checked at compile time (fmt). absl::Status is printable. Control characters
// and invalid UTF-8 never reach the output raw, so a message can't forge a second log line.
// Thread-safe. Before InitLogging, messages go to stderr as text at level info.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "common/base/strings.h"
#include "spdlog/fmt/fmt.h"

namespace baton {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3, kOff = 4 };
enum class LogFormat { kText, kJson };

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  std::string node;  // printed in every line; empty: left out
  // Receives each finished line (without '\n') instead of stderr. Called under a lock; it must not
  // log. For tests.
  std::function<void(std::string_view line)> sink;
};

// May be called again: the new options replace the old ones.
void InitLogging(LogOptions options);
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();
std::string_view LogLevelName(LogLevel level);  // "debug", "info", "warn", "error", "off"

// One message a line, each behind `prefix`: a line break inside a message is written escaped.
void LogLines(LogLevel level, std::string_view prefix, std::string_view text);

// Every message of this thread carries `request_id` until the scope ends. Nests.
class ScopedRequestId {
 public:
  explicit ScopedRequestId(std::string_view request_id);
  ~ScopedRequestId();
  ScopedRequestId(const ScopedRequestId&) = delete;
  ScopedRequestId& operator=(const ScopedRequestId&) = delete;

 private:
  std::string previous_;
};

// Lets one caller through per `interval`; thread-safe. `now_ns` is a steady clock's reading.
class LogRateLimiter {
 public:
  explicit LogRateLimiter(int64_t interval_ns) : interval_ns_(interval_ns) {}
  bool Allow(int64_t now_ns);
  bool Allow();  // with the real steady clock
  // Messages refused since the last one let through; resets the count.
  uint64_t TakeSuppressed() { return suppressed_.exchange(0, std::memory_order_relaxed); }

 private:
  const int64_t interval_ns_;
  std::atomic<int64_t> next_ns_{INT64_MIN};
  std::atomic<uint64_t> suppressed_{0};
};

namespace log_internal {
extern std::atomic<int> g_level;
inline bool Enabled(LogLevel level) {
  return static_cast<int>(level) >= g_level.load(std::memory_order_relaxed);
}
void Write(LogLevel level, const char* file, int line, std::string message);
std::string SuppressedNote(uint64_t suppressed);

template <typename... Args>
void Format(LogLevel level, const char* file, int line, fmt::format_string<Args...> format,
            Args&&... args) {
  Write(level, file, line, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void FormatSuppressed(LogLevel level, const char* file, int line, uint64_t suppressed,
                      fmt::format_string<Args...> format, Args&&... args) {
  Write(level, file, line,
        fmt::format(format, std::forward<Args>(args)...) + SuppressedNote(suppressed));
}
}  // namespace log_internal
}  // namespace baton

#define BATON_LOG_AT(level, ...)                                             \
  do {                                                                       \
    if (::baton::log_internal::Enabled(level)) {                             \
      ::baton::log_internal::Format(level, __FILE__, __LINE__, __VA_ARGS__); \
    }                                                                        \
  } while (false)
#define BATON_LOG_DEBUG(...) BATON_LOG_AT(::baton::LogLevel::kDebug, __VA_ARGS__)
#define BATON_LOG_INFO(...) BATON_LOG_AT(::baton::LogLevel::kInfo, __VA_ARGS__)
#define BATON_LOG_WARN(...) BATON_LOG_AT(::baton::LogLevel::kWarn, __VA_ARGS__)
#define BATON_LOG_ERROR(...) BATON_LOG_AT(::baton::LogLevel::kError, __VA_ARGS__)

// The same with a request id as a field of its own.
#define BATON_RLOG_AT(level, request_id, ...)                                \
  do {                                                                       \
    if (::baton::log_internal::Enabled(level)) {                             \
      ::baton::ScopedRequestId baton_request_id_(request_id);                \
      ::baton::log_internal::Format(level, __FILE__, __LINE__, __VA_ARGS__); \
    }                                                                        \
  } while (false)
#define BATON_RLOG_DEBUG(id, ...) BATON_RLOG_AT(::baton::LogLevel::kDebug, id, __VA_ARGS__)
#define BATON_RLOG_INFO(id, ...) BATON_RLOG_AT(::baton::LogLevel::kInfo, id, __VA_ARGS__)
#define BATON_RLOG_WARN(id, ...) BATON_RLOG_AT(::baton::LogLevel::kWarn, id, __VA_ARGS__)
#define BATON_RLOG_ERROR(id, ...) BATON_RLOG_AT(::baton::LogLevel::kError, id, __VA_ARGS__)

// A warning at most once per `seconds` from this place; says how many were left out.
#define BATON_LOG_EVERY_SEC(seconds, ...)                                                     \
  do {                                                                                        \
    static ::baton::LogRateLimiter baton_limiter_(static_cast<int64_t>((seconds)*1e9));       \
    if (::baton::log_internal::Enabled(::baton::LogLevel::kWarn) && baton_limiter_.Allow()) { \
      ::baton::log_internal::FormatSuppressed(::baton::LogLevel::kWarn, __FILE__, __LINE__,   \
                                              baton_limiter_.TakeSuppressed(), __VA_ARGS__);  \
    }                                                                                         \
  } while (false)

template <>
struct fmt::formatter<absl::Status> : fmt::formatter<std::string> {
  template <typename Context>
  auto format(const absl::Status& status, Context& context) const {
    return fmt::formatter<std::string>::format(status.ToString(), context);
  }
};
