// How far a command is, for whoever waits for it: on a terminal one line that is rewritten,
// elsewhere a line now and then, on stderr.
//
//   Progress progress("requests", 500);
//   progress.Update(++done);      // "120 of 500 requests (24 %), 40.2/s, 10 s left"
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace baton {

// Rate and time left once there is something to tell them from.
std::string ProgressLine(std::int64_t done, std::int64_t total, std::string_view what,
                         std::chrono::nanoseconds elapsed);

// Thread-safe.
class Progress {
 public:
  // `what`: what is counted, in the plural, with whatever belongs after it.
  Progress(std::string what, std::int64_t total);
  Progress(std::string what, std::int64_t total, bool terminal, const Clock& clock);
  // Ends an unfinished line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of the total; the total is always shown, once.
  void Update(std::int64_t done);

 private:
  const std::string what_;
  const std::int64_t total_;
  const bool terminal_;
  const Clock& clock_;
  const std::chrono::nanoseconds begin_;
  Mutex mu_;
  std::chrono::nanoseconds said_ GUARDED_BY(mu_);
  bool line_open_ GUARDED_BY(mu_) = false;
  bool finished_ GUARDED_BY(mu_) = false;
};

}  // namespace baton
