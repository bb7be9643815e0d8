// The engine's series in the metrics registry, all labelled with the model's name.
#pragma once

#include <cstdint>
#include <string>

#include "common/kv_cache/page_pool.h"
#include "common/metrics/metrics.h"

namespace baton {

struct EngineMetrics {
  EngineMetrics() = default;  // counts nothing
  EngineMetrics(MetricRegistry& registry, const std::string& model);
  void SetPool(const PagePool::Stats& stats);

  Gauge running, waiting;
  Gauge usage_ratio, pages_free, pages_reserved, pages_held;
  Counter prefix_queries, prefix_hits;
  Counter preemptions, prompt_tokens, run_tokens, generation_tokens;
  Histogram step_seconds;
};

}  // namespace baton
