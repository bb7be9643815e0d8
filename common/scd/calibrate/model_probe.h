// A model run over a text one layer at a time, with what calibration looks at laid open.
//
//   probe->Start(tokens);
//   for (int layer = 0; layer < layers; ++layer) Use(probe->RunLayer(layer));
//
// Layer by layer, so that two models go through a text in lockstep and nothing but one layer's
// states of each is kept. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model.h"

namespace baton {

// Whose states: a model, with an adapter or kNoAdapter. `adapters` may be null without one.
struct ProbedModel {
  std::shared_ptr<const Model> model;
  const AdapterSet* adapters = nullptr;
  int adapter = kNoAdapter;
};

// One layer's, for every token of the text; row major.
struct LayerStates {
  std::int64_t rows = 0;
  std::vector<float> hidden;   // [rows, hidden]: attention input normalised, before gamma
  std::vector<float> kv;       // [rows, 2 * kv_dim]: [K | V], K after k-norm, before RoPE
  std::vector<float> queries;  // [rows, heads * head_dim]: after q-norm, before RoPE
  std::vector<float> energy;   // [rows]: |layer input|^2, the stream that attention adds to
  std::vector<float> rms;      // [rows]: the layer input is `hidden` times it
};

class ModelProbe {
 public:
  // RESOURCE_EXHAUSTED when the pages for texts of `max_tokens` cannot be had. `executor` must
  // outlive the probe.
  static absl::StatusOr<std::unique_ptr<ModelProbe>> Create(const ProbedModel& model,
                                                            std::int32_t max_tokens,
                                                            Executor& executor);
  ~ModelProbe();

  // Forgets the last text. At most `max_tokens` ids below the model's vocabulary.
  void Start(absl::Span<const std::int32_t> tokens);
  // The same with the stream [rows, hidden] that enters a layer, which is then run first. Positions
  // are from 0.
  void StartWith(absl::Span<const float> stream);
  // Layers in order, from 0 after Start. Valid until the next call.
  const LayerStates& RunLayer(int layer);

 private:
  class Watch;
  explicit ModelProbe(std::unique_ptr<Watch> watch);
  std::unique_ptr<Watch> watch_;
};

}  // namespace baton
