// What an evaluation compares: every way by which K/V can come, each with the bytes it sends.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/scd/calibrate/calibration.h"
#include "common/scd/calibrate/prefix_way.h"
#include "common/scd/codec.h"
#include "common/scd/evaluate/selective_way.h"
#include "kernels/executor.h"

namespace baton {

// A codec and the name that tables give it.
struct NamedCodec {
  std::string name;
  std::string path;
  Codec codec;
};

struct EvaluatedWay {
  PrefixWay way;
  std::string family;  // ways of one family differ in their rate: a curve of the plots
  // Of a prefix of so many rows, for each of them.
  std::function<double(std::int64_t rows)> bytes_per_token;
  bool is_default = false;  // as the strategy of this name serves: it also answers questions
  double compute = 0;       // part of the layers that the consumer runs over the prefix
};

// Every codec is of this pair. INVALID_ARGUMENT naming file, field, what is there and what the pair
// has.
absl::Status CheckCodecs(const CalibrationPair& pair, const std::vector<NamedCodec>& codecs);

// raw (fp16) first, q4, 4-, 3- and 2-bit baselines, each run of `recomputed` layers, and each codec
// whole and cut to the parts `cuts` (0 to 1) of its bytes that are above its least. Prefixes have
// at most `max_tokens`. `codecs`, like `executor`, must outlive them. RESOURCE_EXHAUSTED as
// SelectiveWay.
absl::StatusOr<std::vector<EvaluatedWay>> MakeWays(const CalibrationPair& pair,
                                                   const std::vector<NamedCodec>& codecs,
                                                   const std::vector<double>& cuts,
                                                   const std::vector<LayerRun>& recomputed,
                                                   std::int32_t max_tokens, Executor& executor);

}  // namespace baton
