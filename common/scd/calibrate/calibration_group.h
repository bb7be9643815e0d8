// The models that codecs are made of: a producer, and one consumer or those that share a code.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/scd/calibrate/model_probe.h"
#include "common/weights/model_config.h"

namespace baton {

inline constexpr std::size_t kMaxSharedConsumers = 64;

struct CalibrationPair {
  ProbedModel producer;
  ProbedModel consumer;
  // As CodecIdentity names them.
  std::string producer_weights;
  std::string consumer_weights;
  std::string tokenizer;
};

struct CalibrationConsumer {
  std::string name;  // in messages, reports and names of files; of one that is alone it is not used
  ProbedModel model;
  std::string weights;  // CodecIdentity::consumer_weights
};

struct CalibrationGroup {
  ProbedModel producer;
  // As CodecIdentity names them.
  std::string producer_weights;
  std::string tokenizer;
  std::vector<CalibrationConsumer> consumers;

  bool shared() const { return consumers.size() > 1; }
};

// A group of one consumer without a name.
CalibrationGroup GroupOf(const CalibrationPair& pair);

// INVALID_ARGUMENT when the shapes differ that a codec has: names the field and both numbers.
absl::Status CheckPair(const ModelConfig& producer, const ModelConfig& consumer);

// INVALID_ARGUMENT: as CheckPair of each consumer, with its name; no consumer or too many; of
// several, a name that two have or that is no name of a file.
absl::Status CheckGroup(const CalibrationGroup& group);

// Bytes of one token's K/V in fp16, what `raw` sends.
double RawBytesPerToken(const ModelConfig& config);

}  // namespace baton
