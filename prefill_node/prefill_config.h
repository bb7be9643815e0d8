// The config file of `baton-prefill`.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/config/schema.h"
#include "common/node/node_config.h"

namespace baton {

// handoff: what a producer promises its consumers.
struct PrefillHandoffConfig {
  std::chrono::milliseconds heartbeat{1'000};  // a sign of life on the stream
  std::chrono::milliseconds lease{30'000};     // a transfer nobody reads is dropped after this
  std::int64_t frame_bytes = 4 << 20;          // payload of one frame
  int window = 8;                              // frames of one transfer in flight
  std::int64_t code_store_bytes = 1 << 30;     // codes that are kept; 0: none
  std::string code_spill_path;                 // where those go on that memory has no room for
  std::int64_t code_spill_bytes = 0;           // of its files
  bool code_ahead = true;                      // for consumers that have not asked yet
};

struct PrefillConfig : NodeConfig {
  PrefillHandoffConfig handoff;
};

config::Section<PrefillConfig> PrefillSection();

}  // namespace baton
