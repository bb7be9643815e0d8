// Codecs of tiny models that need no calibration, because nothing is left out: 8 bits for each
// component, levels over the range that the model's own states have on some text.
//
//   Codec codec = TinyCodec(folder, CodeSource::kKv, folder, digest);   // its own K/V, nearly
//   exact
//
// For another consumer the decoder is the least-squares fit of its K/V on that text.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "common/model/single_sequence.h"
#include "common/scd/codec.h"
#include "common/weights/model_source.h"
#include "kernels/executor.h"

namespace baton {

namespace tiny_codec_internal {

template <typename T>
T OrThrow(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(std::string(value.status().message()));
  return *std::move(value);
}

// Keeps the source's rows, [K | V] and the stream.
class Watcher final : public CaptureHook {
 public:
  Watcher(const ModelConfig& config, CodeSource source)
      : hidden_(config.hidden), kv_dim_(config.kv_heads * config.head_dim), source_(source) {
    rows_.resize(static_cast<std::size_t>(config.layers));
    kv_.resize(rows_.size());
    inputs_.resize(rows_.size());
    streams_.resize(rows_.size());
    rms_.resize(rows_.size());
  }
  bool WantsInput(int) const override { return true; }
  void OnKv(const LayerCapture& c) override {
    auto& rows = rows_[static_cast<std::size_t>(c.layer)];
    auto& kv = kv_[static_cast<std::size_t>(c.layer)];
    auto& stream = streams_[static_cast<std::size_t>(c.layer)];
    auto& rms = rms_[static_cast<std::size_t>(c.layer)];
    rms.insert(rms.end(), c.rms, c.rms + c.rows);
    for (std::int64_t r = 0; r < c.rows; ++r) {
      const float* k = c.k_pre_rope + r * c.ld_kv;
      const float* v = c.v + r * c.ld_kv;
      kv.insert(kv.end(), k, k + kv_dim_);
      kv.insert(kv.end(), v, v + kv_dim_);
      const float* h = c.h_in + r * hidden_;
      rows.insert(rows.end(), h, h + hidden_);
      for (std::int64_t i = 0; i < hidden_; ++i) stream.push_back(h[i] * c.rms[r]);
    }
    if (source_ == CodeSource::kHidden) inputs_[static_cast<std::size_t>(c.layer)] = rows;
    if (source_ == CodeSource::kKv) rows = kv;
  }
  const std::vector<float>& rows(std::size_t layer) const { return rows_[layer]; }
  const std::vector<float>& kv(std::size_t layer) const { return kv_[layer]; }
  const std::vector<float>& inputs(std::size_t layer) const { return inputs_[layer]; }
  const std::vector<float>& streams(std::size_t layer) const { return streams_[layer]; }
  const std::vector<float>& rms(std::size_t layer) const { return rms_[layer]; }

 private:
  const std::int64_t hidden_, kv_dim_;
  const CodeSource source_;
  std::vector<std::vector<float>> rows_, kv_, inputs_, streams_;  // [layer][row * width]
  std::vector<std::vector<float>> rms_;                           // [layer][row]
};

// Solves A X = B for symmetric positive definite A [n, n], B [n, m], by elimination in float64.
inline std::vector<double> Solve(std::vector<double> a, std::vector<double> b, std::int64_t n,
                                 std::int64_t m) {
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t r = i + 1; r < n; ++r) {
      const double f = a[r * n + i] / a[i * n + i];
      for (std::int64_t c = i; c < n; ++c) a[r * n + c] -= f * a[i * n + c];
      for (std::int64_t c = 0; c < m; ++c) b[r * m + c] -= f * b[i * m + c];
    }
  }
  for (std::int64_t i = n - 1; i >= 0; --i) {
    for (std::int64_t c = 0; c < m; ++c) {
      for (std::int64_t k = i + 1; k < n; ++k) b[i * m + c] -= a[i * n + k] * b[k * m + c];
      b[i * m + c] /= a[i * n + i];
    }
  }
  return b;
}

// Least squares through the origin, [out, in]: exact where [K | V] is a linear map of the source.
inline std::vector<float> Fit(const std::vector<float>& x, const std::vector<float>& y,
                              std::int64_t in, std::int64_t out) {
  const std::int64_t n = static_cast<std::int64_t>(x.size()) / in;
  std::vector<double> xx(static_cast<std::size_t>(in * in)), xy(static_cast<std::size_t>(in * out));
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t i = 0; i < in; ++i) {
      const double xi = x[r * in + i];
      for (std::int64_t j = 0; j < in; ++j) xx[i * in + j] += xi * x[r * in + j];
      for (std::int64_t j = 0; j < out; ++j) xy[i * out + j] += xi * y[r * out + j];
    }
  }
  for (std::int64_t i = 0; i < in; ++i) xx[i * in + i] += 1e-9 * n;
  const std::vector<double> b = Solve(xx, xy, in, out);
  std::vector<float> map(static_cast<std::size_t>(out * in));
  for (std::int64_t i = 0; i < in; ++i) {
    for (std::int64_t j = 0; j < out; ++j) map[j * in + i] = static_cast<float>(b[i * out + j]);
  }
  return map;
}

}  // namespace tiny_codec_internal

// Of a producer and a consumer in Hugging Face folders, fp32. `patched` layers decode to the
// consumer's attention inputs, the first of `layers_run` to the stream that enters it; source
// kHidden only.
inline Codec TinyCodec(const std::string& producer, CodeSource source, const std::string& consumer,
                       const std::string& tokenizer_digest,
                       const std::set<std::size_t>& patched = {}, LayerRun layers_run = {}) {
  using namespace tiny_codec_internal;  // NOLINT(google-build-using-namespace): of this header
  SerialExecutor executor;
  constexpr std::int32_t kRows = 512;
  std::vector<std::int32_t> tokens(kRows), positions(kRows);
  for (std::int32_t i = 0; i < kRows; ++i) tokens[static_cast<std::size_t>(i)] = 32 + i * 37 % 90;
  std::iota(positions.begin(), positions.end(), 0);
  struct Side {
    std::shared_ptr<const Model> model;
    std::unique_ptr<Watcher> states;
  };
  const auto run = [&](const std::string& path) {
    const auto opened = OrThrow(ModelSource::Open(path));
    Side side{OrThrow(Model::Load(*opened, {.executor = &executor})), nullptr};
    const ModelConfig& config = side.model->config();
    side.states = std::make_unique<Watcher>(config, source);
    auto sequence = OrThrow(SingleSequence::Create(config, DType::kF32, kRows));
    ForwardPass pass(side.model, nullptr, executor);
    const SequenceSlice slice{0, kRows, &sequence->view(), kNoAdapter};
    pass.RunLayers(0, static_cast<int>(config.layers), pass.Embed(tokens),
                   {.positions = positions, .sequences = {&slice, 1}}, side.states.get());
    return side;
  };
  const Side from = run(producer);
  const Side to = run(consumer);
  const ModelConfig& config = from.model->config();
  Codec codec;
  codec.identity = {from.model->content_digest(),
                    to.model->content_digest(),
                    tokenizer_digest,
                    source,
                    config.layers,
                    config.hidden,
                    config.kv_heads,
                    config.head_dim};
  const std::int64_t in = codec.identity.source_width();
  const std::int64_t out = 2 * codec.identity.kv_dim();
  for (std::size_t l = 0; l < static_cast<std::size_t>(config.layers); ++l) {
    CodecLayer layer;
    const bool in_run = layers_run.contains(static_cast<int>(l));
    if (in_run && static_cast<int>(l) > layers_run.begin) {
      layer.kind = LayerKind::kNative;
      codec.layers.push_back(std::move(layer));
      continue;
    }
    layer.mean.assign(static_cast<std::size_t>(in), 0);
    layer.encoder.assign(static_cast<std::size_t>(in * in), 0);
    layer.offset.assign(static_cast<std::size_t>(out), 0);
    layer.bits.assign(static_cast<std::size_t>(in), 8);
    const std::vector<float>& rows = in_run ? from.states->streams(l) : from.states->rows(l);
    for (std::int64_t i = 0; i < in; ++i) {
      layer.encoder[static_cast<std::size_t>(i * in + i)] = 1;
      layer.importance.push_back(static_cast<float>(in - i));
      float reach = 1e-3f;
      for (std::size_t r = static_cast<std::size_t>(i); r < rows.size(); r += in) {
        reach = std::max(reach, std::abs(rows[r]));
      }
      reach *= 1.3f;  // other text reaches further
      for (int step = 0; step < 256; ++step) {
        layer.levels.push_back(reach * (static_cast<float>(step) - 127.5f) / 127.5f);
      }
    }
    layer.decoder = Fit(rows, to.states->kv(l), in, out);
    if (patched.count(l) > 0) {
      layer.kind = LayerKind::kPatch;
      layer.decoder = Fit(rows, to.states->inputs(l), in, config.hidden);
      layer.offset.assign(static_cast<std::size_t>(config.hidden), 0);
    }
    if (in_run) {
      layer.kind = LayerKind::kStream;
      layer.decoder = Fit(rows, to.states->streams(l), in, config.hidden);
      layer.offset.assign(static_cast<std::size_t>(config.hidden), 0);
    }
    codec.layers.push_back(std::move(layer));
  }
  return codec;
}

}  // namespace baton
