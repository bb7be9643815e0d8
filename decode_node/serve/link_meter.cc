#include "decode_node/serve/link_meter.h"

namespace baton {
namespace {

constexpr std::uint64_t kLeastBytes = 64 << 10;
constexpr double kNewest = 0.3;  // its part in the moving average

}  // namespace

void LinkMeter::Observe(std::uint64_t bytes, double busy_s) {
  if (bytes < kLeastBytes || !(busy_s > 0)) return;
  const double rate = static_cast<double>(bytes) / busy_s;
  MutexLock lock(mu_);
  rate_ = rate_ == 0 ? rate : (1 - kNewest) * rate_ + kNewest * rate;
}

double LinkMeter::bytes_per_s() const {
  MutexLock lock(mu_);
  return rate_;
}

}  // namespace baton
