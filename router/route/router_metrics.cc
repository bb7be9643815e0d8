#include "router/route/router_metrics.h"

namespace baton {

RouterMetrics::RouterMetrics(MetricRegistry& registry)
    : ttft(registry.AddHistogramFamily("baton_time_to_first_token_seconds",
                                       "Arrival at the router to the first token; stream=false: "
                                       "of replies that are sent whole.",
                                       {"stream"})),
      inter_token(registry.AddHistogram("baton_inter_token_latency_seconds",
                                        "Time between tokens, per token after the first.",
                                        ShortLatencyBuckets())),
      e2e(registry.AddHistogram("baton_e2e_request_latency_seconds",
                                "Arrival at the router to the end, of finished generations.")),
      requests(registry.AddCounterFamily("baton_requests_total",
                                         "Generations by the status they ended with.", {"code"})),
      overhead(registry.AddHistogramFamily("baton_router_overhead_seconds",
                                           "Time a generation spends in the router before its "
                                           "decode call, by stage.",
                                           {"stage"}, ShortLatencyBuckets())),
      inflight(registry.AddGauge("baton_router_inflight", "Generations under way.")),
      retries(registry.AddCounter("baton_router_retries_total",
                                  "Decode calls tried again before the first token.")),
      migrations(registry.AddCounter("baton_migrations_total",
                                     "Streams continued by another decode call.")),
      prompt_tokens(registry.AddCounter("baton_prompt_tokens_total",
                                        "Prompt tokens of finished generations.")),
      completion_tokens(registry.AddCounter("baton_completion_tokens_total",
                                            "Tokens of finished generations.")) {}

}  // namespace baton
