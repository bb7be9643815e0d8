#include "common/node/load_progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <utility>

#include "common/base/clock.h"
#include "common/base/logging.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kRedraw(100);
constexpr std::chrono::seconds kLogEvery(5);
constexpr double kMiB = 1 << 20;

}  // namespace

std::string ProgressText(std::int64_t done, std::int64_t total, std::chrono::nanoseconds elapsed) {
  std::string text = fmt::format(
      "{:.1f} of {:.1f} MiB ({} %)", static_cast<double>(done) / kMiB,
      static_cast<double>(total) / kMiB,
      total > 0 ? static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total))
                : 100);
  const double seconds = Seconds(elapsed);
  if (done <= 0 || seconds <= 0) return text;
  const double rate = static_cast<double>(done) / seconds;
  text += fmt::format(", {:.0f} MiB/s, {:.0f} s left", rate / kMiB,
                      std::ceil(static_cast<double>(total - done) / rate));
  return text;
}

LoadProgress::LoadProgress(std::string name)
    : LoadProgress(std::move(name), isatty(STDERR_FILENO) == 1, Clock::Real()) {}

LoadProgress::LoadProgress(std::string name, bool terminal, const Clock& clock)
    : name_(std::move(name)),
      terminal_(terminal),
      clock_(clock),
      begin_(clock.Now()),
      said_(begin_) {}

LoadProgress::~LoadProgress() { Wipe(); }

void LoadProgress::Update(std::int64_t done, std::int64_t total) {
  done_ = done;
  const std::chrono::nanoseconds now = clock_.Now();
  if (now - said_ < (terminal_ ? std::chrono::nanoseconds(kRedraw) : kLogEvery)) return;
  said_ = now;
  const std::string text = ProgressText(done, total, now - begin_);
  if (terminal_) {
    std::fprintf(stderr, "\r\033[Kloading %s: %s", name_.c_str(), text.c_str());
    line_open_ = true;
  } else {
    BATON_LOG_INFO("loading {}: {}", name_, text);
  }
}

void LoadProgress::Finish(std::string_view more) {
  Wipe();
  const double seconds = Seconds(clock_.Now() - begin_);
  const double mib = static_cast<double>(done_) / kMiB;
  BATON_LOG_INFO("loaded {}: {:.1f} MiB in {:.1f} s ({:.0f} MiB/s){}{}", name_, mib, seconds,
                 seconds > 0 ? mib / seconds : 0, more.empty() ? "" : ", ", more);
}

void LoadProgress::Wipe() {
  if (std::exchange(line_open_, false)) std::fputs("\r\033[K", stderr);
}

}  // namespace baton
