// How far loading is, for whoever waits for it: on a terminal one line that is rewritten, elsewhere
// a log line now and then.
//
//   LoadProgress progress("smollm2");
//   options.progress = [&](std::int64_t done, std::int64_t total) { progress.Update(done, total);
//   };
//   ...
//   progress.Finish("8 MiB of it shared");
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/clock.h"

namespace baton {

// "312.0 of 513.1 MiB (60 %), 405 MiB/s, 1 s left"; rate and time left once there is something to
// tell them from.
std::string ProgressText(std::int64_t done, std::int64_t total, std::chrono::nanoseconds elapsed);

// One thread at a time.
class LoadProgress {
 public:
  // `terminal`: stderr is one.
  explicit LoadProgress(std::string name);
  LoadProgress(std::string name, bool terminal, const Clock& clock);
  // Wipes an unfinished line.
  ~LoadProgress();
  LoadProgress(const LoadProgress&) = delete;
  LoadProgress& operator=(const LoadProgress&) = delete;

  // Bytes. Cheap unless something is due to be said.
  void Update(std::int64_t done, std::int64_t total);
  // Logs what it took; `more` is appended unless empty.
  void Finish(std::string_view more);

 private:
  void Wipe();

  const std::string name_;
  const bool terminal_;
  const Clock& clock_;
  const std::chrono::nanoseconds begin_;
  std::chrono::nanoseconds said_;  // when something was
  std::int64_t done_ = 0;
  bool line_open_ = false;
};

}  // namespace baton
