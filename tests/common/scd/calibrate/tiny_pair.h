// A tiny base model and a consumer of it that an adapter has moved away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "common/scd/calibrate/calibration.h"
#include "common/scd/calibrate/model_probe.h"
#include "common/weights/lora.h"
#include "common/weights/model_source.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace baton {

// Rank 2 on q, k, v and o of every layer; `size` scales what it adds.
inline LoraAdapter RandomAdapter(const ModelConfig& c, float size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  LoraAdapter adapter{.name = "random", .digest = "adapter", .max_rank = 2, .layers = {}};
  const auto module = [&](std::int64_t in, std::int64_t out) {
    LoraModule m{.rank = 2, .in = in, .out = out, .a = {}, .b = {}, .scale = size};
    for (std::int64_t i = 0; i < 2 * in; ++i) m.a.push_back(normal(random) / 8);
    for (std::int64_t i = 0; i < 2 * out; ++i) m.b.push_back(normal(random));
    return m;
  };
  const std::int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  for (std::int64_t l = 0; l < c.layers; ++l) {
    adapter.layers.push_back({{"q_proj", module(c.hidden, q)},
                              {"k_proj", module(c.hidden, kv)},
                              {"v_proj", module(c.hidden, kv)},
                              {"o_proj", module(q, c.hidden)}});
  }
  return adapter;
}

class TinyPair {
 public:
  // size 0: producer and consumer are the same model.
  explicit TinyPair(float size = 0.5f, const TinyLlama& shape = {}) {
    WriteTinyLlama(dir_.path(), shape);
    auto source = ModelSource::Open(dir_.path());
    if (!source.ok()) throw std::runtime_error(source.status().ToString());
    auto model = Model::Load(**source, {.executor = &executor_});
    if (!model.ok()) throw std::runtime_error(model.status().ToString());
    pair_ = {.producer = {.model = *model},
             .consumer = {.model = *model},
             .producer_weights = "base",
             .consumer_weights = "tuned",
             .tokenizer = "bytes"};
    if (size == 0) return;
    adapters_ = std::make_unique<AdapterSet>(*model);
    pair_.consumer.adapters = adapters_.get();
    auto index = adapters_->Add(RandomAdapter((*model)->config(), size, 9), executor_);
    if (!index.ok()) throw std::runtime_error(index.status().ToString());
    pair_.consumer.adapter = *index;
  }

  const CalibrationPair& pair() const { return pair_; }

  // The producer with consumers "c0", "c1", ..., each moved away by an adapter of its own, of these
  // sizes; the first adapter is the pair's.
  CalibrationGroup Group(const std::vector<float>& sizes) {
    CalibrationGroup group = GroupOf(pair_);
    group.consumers.clear();
    if (adapters_ == nullptr) adapters_ = std::make_unique<AdapterSet>(pair_.producer.model);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto seed = static_cast<std::uint32_t>(9 + i);
      auto index = adapters_->Add(RandomAdapter(model().config(), sizes[i], seed), executor_);
      if (!index.ok()) throw std::runtime_error(index.status().ToString());
      group.consumers.push_back(
          {.name = "c" + std::to_string(i),
           .model = {.model = pair_.producer.model, .adapters = adapters_.get(), .adapter = *index},
           .weights = "tuned" + std::to_string(i)});
    }
    return group;
  }

  const Model& model() const { return *pair_.producer.model; }
  Executor& executor() { return executor_; }

 private:
  TempDir dir_;
  SerialExecutor executor_;
  CalibrationPair pair_;
  std::unique_ptr<AdapterSet> adapters_;
};

// Documents of random bytes, 64 to `most` tokens.
inline DocumentSet RandomDocuments(int count, int most, std::uint32_t seed) {
  std::mt19937 random(seed);
  DocumentSet set;
  set.files.push_back({.path = "random.txt"});
  for (int i = 0; i < count; ++i) {
    Document d;
    const int n = 64 + static_cast<int>(random() % static_cast<std::uint32_t>(most - 63));
    for (int t = 0; t < n; ++t) d.tokens.push_back(static_cast<std::int32_t>(random() % 256));
    set.files[0].documents += 1;
    set.files[0].tokens += n;
    set.documents.push_back(std::move(d));
  }
  return set;
}

}  // namespace baton
