// The ways by which a prefix's K/V can come from a producer to a consumer, as held-out scoring runs
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/scd/calibrate/model_probe.h"
#include "common/scd/code_cut.h"
#include "common/scd/codec.h"
#include "kernels/executor.h"

namespace baton {

// One layer's rows of a prefix at the producer, from position 0.
struct ProducerRows {
  int layer = 0;
  std::int64_t rows = 0;
  const std::int32_t* tokens = nullptr;  // [rows]
  const float* hidden = nullptr;         // [rows, hidden]
  const float* rms = nullptr;            // [rows]: as in LayerStates
  const float* kv = nullptr;             // [rows, 2 * kv_dim], K before RoPE
};

struct PrefixWay {
  std::string name;
  // What arrives at the consumer: [K | V] into [rows, 2 * kv_dim], K rotated as the consumer does.
  // The first kSinkTokens rows mean nothing.
  std::function<void(const ProducerRows&, float*)> decode;
  // The prefix's last rows that do not count: the consumer runs them itself, over the others.
  std::int32_t seam = 0;
};

// The producer's own K/V, as they are.
PrefixWay UncodedWay(std::string name, const ProbedModel& consumer, Executor& executor);

// Through the codes that the nodes would make and read, all of them or cut to `cut`, one of this
// codec; the codec's run, if it has one, is computed by the consumer. Prefixes of at most
// `max_tokens`. `codec` passed CheckCodec. RESOURCE_EXHAUSTED as RecomputedWay.
absl::StatusOr<PrefixWay> CodedWay(std::string name, const Codec& codec,
                                   const ProbedModel& consumer, std::int32_t max_tokens,
                                   Executor& executor,
                                   const std::optional<CodeCut>& cut = std::nullopt);

// `first` but for `layers`, which come by `second`.
PrefixWay MixedWay(std::string name, const PrefixWay& first, const PrefixWay& second,
                   const std::vector<std::size_t>& layers);

// The same with a seam: "NAME+seam16".
PrefixWay WithSeam(const PrefixWay& way, std::int32_t seam);

}  // namespace baton
