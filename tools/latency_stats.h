// Percentiles of measured latencies.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace baton::tools {

struct LatencySummary {
  std::size_t count = 0;
  double mean = 0;
  double min = 0;
  double p50 = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
};

// Percentiles by linear interpolation between closest ranks (numpy's default). Empty: all zero.
LatencySummary Summarize(std::vector<double> seconds);

}  // namespace baton::tools
