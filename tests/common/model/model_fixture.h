// Loading and running a model in a test.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "common/model/single_sequence.h"
#include "common/weights/model_source.h"
#include "gtest/gtest.h"
#include "tests/common/model/reference.h"

namespace baton {

inline std::shared_ptr<const Model> LoadModel(const std::string& path, Executor& executor,
                                              WeightDType dtype = WeightDType::kF32) {
  auto source = ModelSource::Open(path);
  if (!source.ok()) throw std::runtime_error(source.status().ToString());
  auto model = Model::Load(**source, {.weight_dtype = dtype, .executor = &executor});
  if (!model.ok()) throw std::runtime_error(model.status().ToString());
  return *model;
}

inline std::unique_ptr<SingleSequence> NewSequence(const Model& model, std::int32_t rows,
                                                   DType kv_dtype = DType::kF32) {
  auto sequence = SingleSequence::Create(model.config(), kv_dtype, rows);
  if (!sequence.ok()) throw std::runtime_error(sequence.status().ToString());
  return *std::move(sequence);
}

inline std::vector<std::int32_t> Iota(std::int64_t n, std::int32_t from = 0) {
  std::vector<std::int32_t> v(n);
  std::iota(v.begin(), v.end(), from);
  return v;
}

// Final hidden states [n, hidden] of `tokens` appended to the view's cache at `start`, in chunks.
inline std::vector<float> RunHidden(ForwardPass& pass, const Model& model, KvView& view,
                                    const std::vector<std::int32_t>& tokens, std::int32_t start = 0,
                                    std::int64_t chunk = 1 << 30, int adapter = kNoAdapter,
                                    CaptureHook* hook = nullptr) {
  const std::int64_t d = model.config().hidden;
  std::vector<float> out;
  for (std::size_t begin = 0; begin < tokens.size();) {
    const std::int64_t n = std::min<std::int64_t>(chunk, tokens.size() - begin);
    const auto positions = Iota(n, start + static_cast<std::int32_t>(begin));
    const SequenceSlice slice{0, static_cast<std::int32_t>(n), &view, adapter};
    float* h = pass.Embed({tokens.data() + begin, static_cast<std::size_t>(n)});
    pass.RunLayers(0, static_cast<int>(model.config().layers), h,
                   {.positions = positions, .sequences = {&slice, 1}}, hook);
    out.insert(out.end(), h, h + n * d);
    begin += n;
  }
  return out;
}

inline std::vector<float> LogitsOf(ForwardPass& pass, const Model& model,
                                   const std::vector<float>& hidden,
                                   const std::vector<std::int32_t>& rows) {
  const float* logits = pass.Logits(hidden.data(), rows);
  return {logits, logits + rows.size() * model.config().vocab};
}

// `n` greedy tokens for each prompt; the prompts are decoded in one batch.
inline std::vector<std::vector<std::int32_t>> Greedy(
    ForwardPass& pass, const Model& model, const std::vector<std::vector<std::int32_t>>& prompts,
    int n, int adapter = kNoAdapter) {
  const std::int64_t vocab = model.config().vocab;
  const auto count = static_cast<std::int32_t>(prompts.size());
  const auto best = [&](const float* row) {
    return static_cast<std::int32_t>(std::max_element(row, row + vocab) - row);
  };
  std::vector<std::vector<std::int32_t>> out(prompts.size());
  std::vector<std::unique_ptr<SingleSequence>> sequences;
  std::vector<SequenceSlice> slices;
  for (std::int32_t p = 0; p < count; ++p) {
    const auto length = static_cast<std::int32_t>(prompts[p].size());
    sequences.push_back(NewSequence(model, length + n));
    const auto hidden =
        RunHidden(pass, model, sequences[p]->view(), prompts[p], 0, 1 << 30, adapter);
    out[p].push_back(best(LogitsOf(pass, model, hidden, {length - 1}).data()));
    slices.push_back({p, p + 1, &sequences[p]->view(), adapter});
  }
  for (int i = 1; i < n; ++i) {
    std::vector<std::int32_t> ids, positions;
    for (std::int32_t p = 0; p < count; ++p) {
      ids.push_back(out[p].back());
      positions.push_back(sequences[p]->size());
    }
    float* h = pass.Embed(ids);
    pass.RunLayers(0, static_cast<int>(model.config().layers), h,
                   {.positions = positions, .sequences = slices}, nullptr);
    const float* logits = pass.Logits(h, Iota(count));
    for (std::int32_t p = 0; p < count; ++p) out[p].push_back(best(logits + p * vocab));
  }
  return out;
}

inline double MaxAbsDiff(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double m = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double diff = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(diff <= m)) m = diff;  // keeps NaN
  }
  return m;
}

inline double RmsDiff(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double diff = static_cast<double>(a[i]) - b[i];
    sum += diff * diff;
  }
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// Keeps what the hook gave, per layer, as contiguous rows.
class KeepCapture final : public CaptureHook {
 public:
  KeepCapture(int layers, std::int64_t hidden, std::int64_t kv_dim)
      : h_in(layers), rms(layers), k(layers), v(layers), hidden_(hidden), kv_dim_(kv_dim) {}
  bool WantsInput(int) const override { return true; }
  void OnKv(const LayerCapture& c) override {
    h_in[c.layer].insert(h_in[c.layer].end(), c.h_in, c.h_in + c.rows * hidden_);
    rms[c.layer].insert(rms[c.layer].end(), c.rms, c.rms + c.rows);
    for (std::int64_t r = 0; r < c.rows; ++r) {
      const float* row = c.k_pre_rope + r * c.ld_kv;
      k[c.layer].insert(k[c.layer].end(), row, row + kv_dim_);
      row = c.v + r * c.ld_kv;
      v[c.layer].insert(v[c.layer].end(), row, row + kv_dim_);
    }
  }

  std::vector<std::vector<float>> h_in, rms, k, v;

 private:
  std::int64_t hidden_, kv_dim_;
};

// Every n-th row of [rows, width].
inline std::vector<float> TakeRows(const std::vector<float>& x, std::int64_t width,
                                   const std::vector<std::int32_t>& rows) {
  std::vector<float> out;
  for (std::int32_t r : rows) {
    out.insert(out.end(), x.begin() + r * width, x.begin() + (r + 1) * width);
  }
  return out;
}

}  // namespace baton
