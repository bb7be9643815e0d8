#include "tools/latency_stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace baton::tools {
namespace {

double Percentile(const std::vector<double>& sorted, double q) {
  const double rank = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(rank));
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (rank - static_cast<double>(low));
}

}  // namespace

LatencySummary Summarize(std::vector<double> seconds) {
  LatencySummary s;
  if (seconds.empty()) return s;
  std::sort(seconds.begin(), seconds.end());
  s.count = seconds.size();
  s.mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(s.count);
  s.min = seconds.front();
  s.p50 = Percentile(seconds, 0.50);
  s.p90 = Percentile(seconds, 0.90);
  s.p95 = Percentile(seconds, 0.95);
  s.p99 = Percentile(seconds, 0.99);
  s.max = seconds.back();
  return s;
}

}  // namespace baton::tools
