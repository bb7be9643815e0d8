// The router's own metrics.
#pragma once

#include "common/metrics/metrics.h"

namespace baton {

struct RouterMetrics {
  explicit RouterMetrics(MetricRegistry& registry);

  HistogramFamily ttft;      // {stream}: arrival to the first token; "false": nobody saw it then
  Histogram inter_token;     // per token after the first
  Histogram e2e;             // arrival to the end, of finished generations only
  CounterFamily requests;    // {code}: every generation by how it ended
  HistogramFamily overhead;  // {stage}: queue, tokenize, route, total
  Gauge inflight;
  Counter retries;     // decode calls tried again before the first token
  Counter migrations;  // streams continued on another decode call
  Counter prompt_tokens;
  Counter completion_tokens;
};

}  // namespace baton
