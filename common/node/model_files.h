// The files of a node's models, opened and verified before anything is computed or served.
//
//   BATON_ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::Open(config.models));
//   ...                                  // open ports: whatever is wrong with the files was said
//   ModelHost::Load(options, std::move(files), metrics);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/node/node_config.h"
#include "common/scd/codec.h"
#include "common/tokenizer/tokenizer.h"
#include "common/weights/layer_run.h"
#include "common/weights/lora.h"
#include "common/weights/model_source.h"

namespace baton {

struct ModelFiles {
  // One file or folder, which several entries may name.
  struct Weights {
    std::unique_ptr<ModelSource> source;
    std::shared_ptr<const Tokenizer> tokenizer;
  };
  // What an entry of the config stands for.
  struct Entry {
    std::size_t weights = 0;                     // index into the vector of that name
    std::shared_ptr<const LoraAdapter> adapter;  // one per folder and weights; or null
    std::string chat_template;                   // text, or the override's name; empty: none
    std::string end_of_turn;                     // the template's token for it; empty: none
    std::int32_t max_context = 0;
    std::vector<std::shared_ptr<const Codec>> codecs;
    LayerRun selective;  // layers
  };

  std::vector<Weights> weights;
  std::vector<Entry> entries;  // in the order of the config

  // Every entry is looked at: the error says what is wrong with each of them (models[i]), one a
  // line. Adapters of a rank above `max_lora_rank` are refused.
  static absl::StatusOr<ModelFiles> Open(const std::vector<ModelEntry>& entries,
                                         std::int64_t max_lora_rank = kMaxLoraRank);
};

}  // namespace baton
