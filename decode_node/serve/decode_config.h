// The config file of `baton-decode`.
#pragma once

#include <chrono>

#include "common/config/schema.h"
#include "common/node/node_config.h"
#include "decode_node/serve/strategy.h"

namespace baton {

enum class OnFailure { kRecompute, kFail };

inline constexpr int kMaxSeam = 1 << 20;

// handoff: how prefixes come from prefill nodes.
struct DecodeHandoffConfig {
  Strategy strategy = Strategy::kAuto;                // for requests that name none
  int min_prefix_tokens = 128;                        // auto: shorter prefixes are computed here
  std::chrono::milliseconds timeout{60'000};          // of one hand-off, all producers together
  std::chrono::milliseconds link_timeout{1'000};      // of the first contact with a producer
  std::chrono::milliseconds progress_timeout{5'000};  // no frame and no sign of life
  OnFailure on_failure = OnFailure::kRecompute;
  int bytes_per_token = 0;              // reuse: codes are cut to fit; 0: all of them
  std::chrono::milliseconds target{0};  // reuse: codes are cut to arrive in it; 0: they are not
  double drift_sample = 0.001;  // share of requests served by codes that the monitor replays
  int seam = 0;                 // codes: last tokens of a prefix that are computed here anyway
  double max_kl = 0.1;          // auto: of codes, as measured at calibration; nats a token
};

struct DecodeConfig : NodeConfig {
  DecodeHandoffConfig handoff;
};

config::Section<DecodeConfig> DecodeSection();

}  // namespace baton
