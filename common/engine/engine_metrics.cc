#include "common/engine/engine_metrics.h"

namespace baton {

EngineMetrics::EngineMetrics(MetricRegistry& registry, const std::string& model) {
  const auto gauge = [&](const char* name, const char* help) {
    return registry.AddGaugeFamily(name, help, {"model"}).With({model});
  };
  const auto counter = [&](const char* name, const char* help) {
    return registry.AddCounterFamily(name, help, {"model"}).With({model});
  };
  running = gauge("baton_num_requests_running", "Requests admitted to the engine.");
  waiting = gauge("baton_num_requests_waiting", "Requests waiting for admission.");
  usage_ratio = gauge("baton_kv_cache_usage_ratio", "Share of KV pages held or reserved, 0 to 1.");
  const GaugeFamily pages = registry.AddGaugeFamily(
      "baton_kv_pages", "KV pages (one layer, one KV head, 16 rows) by state.", {"model", "state"});
  pages_free = pages.With({model, "free"});
  pages_reserved = pages.With({model, "reserved"});
  pages_held = pages.With({model, "held"});
  prefix_queries = counter("baton_prefix_cache_queries_tokens_total",
                           "Prompt tokens looked for in the prefix cache.");
  prefix_hits =
      counter("baton_prefix_cache_hits_tokens_total", "Prompt tokens found in the prefix cache.");
  preemptions = counter("baton_preemptions_total",
                        "Sequences whose pages were taken back, to be recomputed.");
  prompt_tokens = counter("baton_prompt_tokens_total",
                          "Prompt tokens of admitted requests, cached ones included.");
  run_tokens = counter("baton_run_tokens_total",
                       "Tokens of handed-off prefixes of which a run of layers was computed here.");
  generation_tokens = counter("baton_generation_tokens_total", "Tokens generated.");
  step_seconds = registry
                     .AddHistogramFamily("baton_engine_step_seconds",
                                         "Wall time of one forward step with sampling.", {"model"},
                                         ShortLatencyBuckets())
                     .With({model});
}

void EngineMetrics::SetPool(const PagePool::Stats& stats) {
  usage_ratio.Set(static_cast<double>(stats.held + stats.reserved) /
                  static_cast<double>(stats.total));
  pages_free.Set(static_cast<double>(stats.free));
  pages_reserved.Set(static_cast<double>(stats.reserved));
  pages_held.Set(static_cast<double>(stats.held));
}

}  // namespace baton
