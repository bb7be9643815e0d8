// The models of a node: files → weights, adapters, tokenizers, page pools and engines.
//
//   BATON_ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::Open(options.models));
//   BATON_ASSIGN_OR_RETURN(auto host, ModelHost::Load(options, std::move(files), metrics));
//   const HostedModel* model = host->Find("smollm2");
//   model->engine->Submit(...);
//
// Entries of one path and dtypes share weights and an engine; their adapters are rows of one
// AdapterSet. Matrices of equal content are held once, whatever file they come from. Engines whose
// pages have the same layout share a pool. Immutable after Load but for
// the engines, which are thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/engine.h"
#include "common/metrics/metrics.h"
#include "common/node/model_files.h"
#include "common/node/node_config.h"
#include "common/prefix_hash/space.h"
#include "common/scd/decoder.h"
#include "common/scd/encoder.h"
#include "common/weights/layer_run.h"

namespace baton {

struct ModelHostOptions {
  std::vector<ModelEntry> models;
  MemoryConfig memory;
  EngineConfig engine;
  int engine_threads = 1;
  int load_threads = 1;  // nothing else runs while models load
};

struct HostedModel {
  std::string name;
  std::string base_model;  // what producers call the base
  Engine* engine = nullptr;
  int adapter = -1;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<std::int32_t> eos_token_ids;  // of the files, and the template's end of turn
  std::int32_t max_context = 0;
  std::int32_t vocab = 0;            // ids below are valid
  std::string weights_digest;        // as served, adapter included
  Space native_space;                // fidelity exact
  Space base_space;                  // BASE_KV of the weights as served
  std::string chat_template;         // text, or the override's name; empty: none
  std::string chat_template_digest;  // empty: none
  KvPageLayout page_layout;
  // Of the entry's codecs: those that encode this model's states, and that make its K/V.
  std::vector<std::shared_ptr<const CodeEncoder>> encoders;
  std::vector<std::shared_ptr<const CodeDecoder>> decoders;
  LayerRun selective;  // layers that the strategy of that name computes here; empty: none

  // The native space with another fidelity.
  std::string NativeDigest(const Fidelity& fidelity) const;
};

// Text of all pools and weights; printed at start.
struct MemoryPlan {
  std::int64_t weight_bytes = 0;  // in memory: what models share counts once
  std::int64_t kv_bytes = 0;
  std::vector<std::string> lines;
};

class ModelHost {
 public:
  // `files` are those of options.models. Errors name the entry (models[i]).
  static absl::StatusOr<std::unique_ptr<ModelHost>> Load(const ModelHostOptions& options,
                                                         ModelFiles files, MetricRegistry& metrics);
  ~ModelHost();

  // Null when there is no such model. An empty name means the only model, if there is one only.
  const HostedModel* Find(std::string_view name) const;
  const std::vector<HostedModel>& models() const;
  std::string ModelNames() const;  // for error messages
  const MemoryPlan& plan() const;

  // Over all engines and pools; pages are those of pools, each counted once.
  struct Totals {
    std::int64_t running = 0;
    std::int64_t waiting = 0;
    std::int64_t pages_held = 0;
    std::int64_t pages_reserved = 0;
    std::int64_t pages_total = 0;
    std::int64_t cached_blocks = 0;
  };
  Totals GetTotals() const;
  void ClearPrefixCaches();
  // True when everything that ran finished before `timeout`.
  bool Drain(std::chrono::nanoseconds timeout);

 private:
  class Impl;
  explicit ModelHost(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
