// A producer and its consumers as they are served, for the programs that compare them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model.h"
#include "common/model/weight_store.h"
#include "common/scd/calibrate/calibration.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/tokenizer.h"
#include "common/weights/model_source.h"
#include "kernels/executor.h"

namespace baton::tools {

struct ConsumerFiles {
  std::string name;     // CalibrationConsumer::name
  std::string model;    // a .gguf file or Hugging Face folder
  std::string adapter;  // a PEFT LoRA folder, or empty
};

struct GroupFiles {
  std::string producer;  // a .gguf file or Hugging Face folder
  std::vector<ConsumerFiles> consumers;
};

// The models, and what holds them.
struct LoadedGroup {
  // A consumer's model: consumers of one path share it, each with its adapter.
  struct Base {
    std::string path;
    std::unique_ptr<ModelSource> source;
    std::shared_ptr<const Model> model;
    std::unique_ptr<AdapterSet> adapters;  // null: nobody has one
  };

  std::unique_ptr<WeightStore> store;    // what models have in common is there once
  std::unique_ptr<Tokenizer> tokenizer;  // of all
  std::vector<Base> bases;               // in the order of the consumers
  CalibrationGroup group;
};

// In fp32. `progress` in MiB, may be null. At least one consumer. Errors name the file: what
// ModelSource, tokenizer, adapter or model say; INVALID_ARGUMENT when the tokenizers give other
// ids.
absl::StatusOr<LoadedGroup> LoadGroup(const GroupFiles& files, const CalibrationProgress& progress,
                                      Executor& executor);

struct PairFiles {
  std::string producer;
  std::string consumer;
  std::string adapter;  // the consumer's, or empty
};

struct LoadedPair {
  LoadedGroup models;  // of one consumer
  CalibrationPair pair;

  const Tokenizer& tokenizer() const { return *models.tokenizer; }
};

// As LoadGroup.
absl::StatusOr<LoadedPair> LoadPair(const PairFiles& files, const CalibrationProgress& progress,
                                    Executor& executor);

// The chat template of this name ("none": none), or, unnamed, the consumers' own, which may be
// none. INVALID_ARGUMENT for a name or a template that is not known, or when the consumers' differ.
absl::StatusOr<std::optional<ChatTemplate>> ChatOf(const LoadedGroup& loaded,
                                                   const std::string& name);

}  // namespace baton::tools
