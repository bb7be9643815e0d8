#include "common/base/logging.h"

#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>

#include "common/base/mutex.h"
#include "common/base/utf8.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace baton {
namespace {

thread_local std::string t_request_id;

// Escapes control characters, and quotes and backslashes if `json`; replaces invalid UTF-8.
void AppendEscaped(std::string_view text, bool json, std::string& out) {
  while (!text.empty()) {
    const unsigned char c = static_cast<unsigned char>(text[0]);
    size_t length = Utf8SequenceLength(text);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      length = 1;
    } else if (json && (c == '"' || c == '\\')) {
      out += '\\';
      out += text[0];
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x20 || c == 0x7F) {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(length);
  }
}

std::string Timestamp(std::chrono::system_clock::time_point time) {
  const auto since = time.time_since_epoch();
  const std::time_t seconds = std::chrono::duration_cast<std::chrono::seconds>(since).count();
  const int64_t micros =
      std::chrono::duration_cast<std::chrono::microseconds>(since).count() % 1'000'000;
  std::tm tm{};
  gmtime_r(&seconds, &tm);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", tm.tm_year + 1900, tm.tm_mon + 1,
                     tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, micros);
}

std::string_view LevelOf(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::debug:
      return "debug";
    case spdlog::level::warn:
      return "warn";
    case spdlog::level::err:
      return "error";
    default:
      return "info";
  }
}

// The part of a source path that a reader needs: from the room's top folder on.
std::string_view ShortPath(std::string_view path) {
  for (std::string_view top : {"/tests/", "/bench/", "/common/", "/kernels/", "/prefill_node/",
                               "/decode_node/", "/router/", "/tools/"}) {
    const size_t at = path.rfind(top);
    if (at != std::string_view::npos) return path.substr(at + 1);
  }
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

class LineFormatter : public spdlog::formatter {
 public:
  LineFormatter(LogFormat format, std::string node) : format_(format), node_(std::move(node)) {}

  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& dest) override {
    std::string line = format_ == LogFormat::kJson ? Json(msg) : Text(msg);
    line += '\n';
    dest.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(format_, node_);
  }

 private:
  static std::string_view Payload(const spdlog::details::log_msg& msg) {
    return {msg.payload.data(), msg.payload.size()};
  }

  std::string Text(const spdlog::details::log_msg& msg) const {
    std::string line = fmt::format("{} {:<5} ", Timestamp(msg.time), LevelOf(msg.level));
    if (!node_.empty()) {
      line += '[';
      AppendEscaped(node_, false, line);
      line += "] ";
    }
    if (!t_request_id.empty()) {
      line += "[req ";
      AppendEscaped(t_request_id, false, line);
      line += "] ";
    }
    AppendEscaped(Payload(msg), false, line);
    line += fmt::format(" ({}:{})", ShortPath(msg.source.filename), msg.source.line);
    return line;
  }

  std::string Json(const spdlog::details::log_msg& msg) const {
    std::string line =
        fmt::format(R"({{"ts":"{}","level":"{}")", Timestamp(msg.time), LevelOf(msg.level));
    const auto field = [&line](std::string_view name, std::string_view value) {
      line += fmt::format(R"(,"{}":")", name);
      AppendEscaped(value, true, line);
      line += '"';
    };
    if (!node_.empty()) field("node", node_);
    if (!t_request_id.empty()) field("request_id", t_request_id);
    field("msg", Payload(msg));
    field("src", fmt::format("{}:{}", ShortPath(msg.source.filename), msg.source.line));
    line += fmt::format(R"(,"thread":{}}})", msg.thread_id);
    return line;
  }

  const LogFormat format_;
  const std::string node_;
};

class CallbackSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit CallbackSink(std::function<void(std::string_view)> callback)
      : callback_(std::move(callback)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& msg) override {
    spdlog::memory_buf_t line;
    formatter_->format(msg, line);
    callback_(std::string_view(line.data(), line.size() - 1));
  }
  void flush_() override {}

 private:
  const std::function<void(std::string_view)> callback_;
};

std::shared_ptr<spdlog::logger> MakeLogger(const LogOptions& options) {
  spdlog::sink_ptr sink;
  if (options.sink) {
    sink = std::make_shared<CallbackSink>(options.sink);
  } else {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  }
  sink->set_formatter(std::make_unique<LineFormatter>(options.format, options.node));
  auto logger = std::make_shared<spdlog::logger>("baton", std::move(sink));
  logger->set_level(spdlog::level::trace);  // the level is checked before a message is formatted
  return logger;
}

struct Current {
  Mutex mu;
  std::shared_ptr<spdlog::logger> logger GUARDED_BY(mu) = MakeLogger({});
};

Current& GetCurrent() {
  static Current* current = new Current;  // outlives threads that log while the process exits
  return *current;
}

}  // namespace

namespace log_internal {

std::atomic<int> g_level{static_cast<int>(LogLevel::kInfo)};

void Write(LogLevel level, const char* file, int line, std::string message) {
  std::shared_ptr<spdlog::logger> logger;
  {
    Current& current = GetCurrent();
    MutexLock lock(current.mu);
    logger = current.logger;
  }
  spdlog::level::level_enum spd = spdlog::level::info;
  if (level == LogLevel::kDebug) spd = spdlog::level::debug;
  if (level == LogLevel::kWarn) spd = spdlog::level::warn;
  if (level == LogLevel::kError) spd = spdlog::level::err;
  logger->log(spdlog::source_loc{file, line, ""}, spd,
              spdlog::string_view_t(message.data(), message.size()));
}

std::string SuppressedNote(uint64_t suppressed) {
  return suppressed == 0 ? "" : fmt::format(" [{} similar messages left out]", suppressed);
}

}  // namespace log_internal

void InitLogging(LogOptions options) {
  std::shared_ptr<spdlog::logger> logger = MakeLogger(options);
  Current& current = GetCurrent();
  MutexLock lock(current.mu);
  current.logger.swap(logger);
  SetLogLevel(options.level);
}

void SetLogLevel(LogLevel level) {
  log_internal::g_level.store(static_cast<int>(level), std::memory_order_relaxed);
}

LogLevel GetLogLevel() {
  return static_cast<LogLevel>(log_internal::g_level.load(std::memory_order_relaxed));
}

std::string_view LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kError:
      return "error";
    case LogLevel::kOff:
      return "off";
  }
  return "off";
}

void LogLines(LogLevel level, std::string_view prefix, std::string_view text) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    BATON_LOG_AT(level, "{}{}", prefix, text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
}

ScopedRequestId::ScopedRequestId(std::string_view request_id)
    : previous_(std::exchange(t_request_id, std::string(request_id))) {}

ScopedRequestId::~ScopedRequestId() { t_request_id = std::move(previous_); }

bool LogRateLimiter::Allow(int64_t now_ns) {
  int64_t next = next_ns_.load(std::memory_order_relaxed);
  while (now_ns >= next) {
    if (next_ns_.compare_exchange_weak(next, now_ns + interval_ns_, std::memory_order_relaxed)) {
      return true;
    }
  }
  suppressed_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

bool LogRateLimiter::Allow() {
  return Allow(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

}  // namespace baton
