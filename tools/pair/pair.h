// A producer and a consumer as they are served, for the programs that compare them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/model.h"
#include "common/model/weight_store.h"
#include "common/scd/calibrate/calibration.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/tokenizer.h"
#include "common/weights/model_source.h"
#include "kernels/executor.h"

namespace baton::tools {

struct PairFiles {
  std::string producer;  // a .gguf file or Hugging Face folder
  std::string consumer;
  std::string adapter;  // the consumer's PEFT LoRA folder, or empty
};

// The models, and what holds them.
struct LoadedPair {
  std::unique_ptr<WeightStore> store;  // what both have in common is there once
  std::unique_ptr<ModelSource> consumer_source;
  std::unique_ptr<Tokenizer> tokenizer;  // of both
  std::unique_ptr<AdapterSet> adapters;  // the consumer's, or null
  CalibrationPair pair;
};

// In fp32. `progress` in MiB, may be null. Errors name the file: what ModelSource, tokenizer,
// adapter or model say; INVALID_ARGUMENT when the tokenizers give other ids.
absl::StatusOr<LoadedPair> LoadPair(const PairFiles& files, const CalibrationProgress& progress,
                                    Executor& executor);

// The chat template of this name ("none": none), or, unnamed, the consumer's own, which may be
// none. INVALID_ARGUMENT for a name or a template that is not known.
absl::StatusOr<std::optional<ChatTemplate>> ChatOf(const LoadedPair& loaded,
                                                   const std::string& name);

}  // namespace baton::tools
