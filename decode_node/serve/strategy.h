// How the prefix of a prompt is obtained, by name: what the config file, requests, answers and
// metrics say.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton {

enum class Strategy {
  // If the prefix is long enough: raw where the producer's weights are this model's own, codes
  // where calibration measured that they serve it well.
  kAuto,
  kOracle,  // computed here
  kRaw,     // a producer's K/V, taken over unchanged
  kQ4,      // the same as 4-bit codes
  kReuse,   // codes of the producer's states, decoded into this model's own K/V
  kScd,     // codes as well, of any codec: also where layers are patched or run here (codec.h). To
            // producers and in the metrics of hand-offs both are reuse: the codes are of one kind
  // raw, but for a run of layers (models[].selective_layers), which is computed here from the
  // producer's residual stream.
  kSelective,
};

const char* StrategyName(Strategy strategy);
// Nothing for another name.
std::optional<Strategy> ParseStrategy(std::string_view name);
// All of them, in the order of the enumeration.
std::vector<std::pair<std::string, Strategy>> StrategyNames();
// "auto, oracle, ...", for messages.
std::string AllowedStrategies();

}  // namespace baton
