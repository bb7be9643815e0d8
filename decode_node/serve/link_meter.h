// What a link to a producer carries, measured in use. Thread-safe.
#pragma once

#include <cstdint>

#include "common/base/mutex.h"

namespace baton {

class LinkMeter {
 public:
  // A transfer of so many bytes kept the link busy for so long; small ones say nothing of it.
  void Observe(std::uint64_t bytes, double busy_s) EXCLUDES(mu_);
  // 0: not known yet.
  double bytes_per_s() const EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  double rate_ GUARDED_BY(mu_) = 0;
};

}  // namespace baton
