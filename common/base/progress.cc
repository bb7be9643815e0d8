#include "common/base/progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <utility>

#include "spdlog/fmt/fmt.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kRedraw(200);
constexpr std::chrono::seconds kLineEvery(10);

}  // namespace

std::string ProgressLine(std::int64_t done, std::int64_t total, std::string_view what,
                         std::chrono::nanoseconds elapsed) {
  const auto d = static_cast<double>(done), t = static_cast<double>(total);
  std::string line = fmt::format("{} of {} {} ({} %)", done, total, what,
                                 total > 0 ? static_cast<int>(100 * d / t) : 100);
  const double seconds = Seconds(elapsed);
  if (done <= 0 || seconds <= 0) return line;
  const double rate = d / seconds;
  line += fmt::format(", {:.{}f}/s", rate, rate < 100 ? 1 : 0);
  return done < total ? line + fmt::format(", {:.0f} s left", std::ceil((t - d) / rate))
                      : line + fmt::format(", {:.1f} s", seconds);
}

Progress::Progress(std::string what, std::int64_t total)
    : Progress(std::move(what), total, isatty(STDERR_FILENO) == 1, Clock::Real()) {}

Progress::Progress(std::string what, std::int64_t total, bool terminal, const Clock& clock)
    : what_(std::move(what)),
      total_(total),
      terminal_(terminal),
      clock_(clock),
      begin_(clock.Now()),
      said_(begin_) {}

Progress::~Progress() {
  MutexLock lock(mu_);
  if (line_open_) std::fputs("\n", stderr);
}

void Progress::Update(std::int64_t done) {
  const std::chrono::nanoseconds now = clock_.Now();
  MutexLock lock(mu_);
  const bool last = done >= total_;
  if (finished_) return;
  finished_ = last;
  if (!last && now - said_ < (terminal_ ? std::chrono::nanoseconds(kRedraw) : kLineEvery)) return;
  said_ = now;
  const std::string line = ProgressLine(done, total_, what_, now - begin_);
  std::fprintf(stderr, "%s%s%s", terminal_ ? "\r\033[K" : "", line.c_str(),
               terminal_ && !last ? "" : "\n");
  line_open_ = terminal_ && !last;
}

}  // namespace baton
