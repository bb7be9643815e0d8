#include "common/scd/calibrate/prefix_way.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/strings.h"
#include "common/model/kv_projection.h"
#include "common/model/model_weights.h"
#include "common/scd/calibrate/recomputed_way.h"
#include "common/scd/calibrate/statistics.h"
#include "common/scd/decoder.h"
#include "common/scd/encoder.h"
#include "kernels/elementwise.h"

namespace baton {
namespace {

DecoderRope RopeOf(const Model& model) {
  return {.inv_freq = model.weights().inv_freq,
          .scale = static_cast<float>(model.config().rope.attention_factor)};
}

// Empty for a codec that needs none. `consumer.adapters` must outlive it.
ConsumerProjection ProjectionOf(const Codec& codec, const ProbedModel& consumer,
                                Executor& executor) {
  if (!codec.patched()) return nullptr;
  const std::shared_ptr<const AdapterSet> adapters(consumer.adapters, [](const AdapterSet*) {});
  const auto own =
      std::make_shared<const KvProjection>(consumer.model, adapters, consumer.adapter, executor);
  return [own](int layer, const float* inputs, std::int64_t rows, float* kv, Executor& e) {
    own->Project(layer, inputs, rows, kv, e);
  };
}

// Both halves of a codec, and room for one block.
class Coder {
 public:
  Coder(const Codec& codec, const ProbedModel& consumer, const std::optional<CodeCut>& cut,
        Executor& executor)
      : encoder_(codec, executor),
        decoder_(codec, RopeOf(*consumer.model), executor, ProjectionOf(codec, consumer, executor)),
        cut_(cut ? *cut : encoder_.whole()),
        executor_(executor) {}

  // Of a layer outside the run.
  void Kv(const ProducerRows& given, float* out) {
    const int components = cut_.layers[static_cast<std::size_t>(given.layer)].components;
    Code(given, 2 * decoder_.kv_dim(), out, [&](std::int64_t row) {
      decoder_.Decode(given.layer, codes_.data(), components, static_cast<std::int32_t>(row),
                      decoded_.data(), executor_);
    });
  }

  // Of the run's first layer.
  void Stream(const ProducerRows& given, float* out) {
    const int components = cut_.layers[static_cast<std::size_t>(given.layer)].components;
    Code(given, decoder_.hidden(), out, [&](std::int64_t) {
      decoder_.DecodeStream(codes_.data(), components, decoded_.data(), executor_);
    });
  }

 private:
  // `decode` makes decoded_ [kCodeBlockRows, width] of codes_, whose first row it is given.
  template <typename Decode>
  void Code(const ProducerRows& given, std::int64_t width, float* out, const Decode& decode) {
    codes_.resize(encoder_.whole().layers[static_cast<std::size_t>(given.layer)].block_bytes);
    decoded_.resize(static_cast<std::size_t>(kCodeBlockRows * width));
    for (std::int64_t row = 0; row < given.rows; row += kCodeBlockRows) {
      const std::int64_t rows = std::min<std::int64_t>(kCodeBlockRows, given.rows - row);
      FillBlock(given, row, rows);
      encoder_.Encode(given.layer, block_.data(), encoder_.row_width(), row == 0 ? kSinkTokens : 0,
                      codes_.data(), executor_);
      decode(row);
      std::copy_n(decoded_.data(), rows * width, out + row * width);
    }
  }

  // The last block may be short: rows of zeros fill it.
  void FillBlock(const ProducerRows& given, std::int64_t row, std::int64_t rows) {
    const bool hidden = encoder_.source() == CodeSource::kHidden;
    const std::int64_t width = encoder_.width(), ld = encoder_.row_width();
    const float* source = hidden ? given.hidden : given.kv;
    block_.assign(static_cast<std::size_t>(kCodeBlockRows * ld), 0.0f);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy_n(source + (row + r) * width, width, block_.data() + r * ld);
      if (hidden) block_[static_cast<std::size_t>(r * ld + width)] = given.rms[row + r];
    }
  }

  const CodeEncoder encoder_;
  const CodeDecoder decoder_;
  const CodeCut cut_;
  Executor& executor_;
  std::vector<float> block_;
  std::vector<std::byte> codes_;
  std::vector<float> decoded_;
};

}  // namespace

PrefixWay UncodedWay(std::string name, const ProbedModel& consumer, Executor& executor) {
  return {std::move(name),
          [model = consumer.model, &executor](const ProducerRows& given, float* out) {
            const ModelConfig& c = model->config();
            const std::int64_t kv = 2 * c.kv_heads * c.head_dim;
            const DecoderRope rope = RopeOf(*model);
            std::vector<std::int32_t> positions(static_cast<std::size_t>(given.rows));
            std::iota(positions.begin(), positions.end(), 0);
            std::copy_n(given.kv, given.rows * kv, out);
            Rope(out, kv, positions.data(), rope.inv_freq.data(), rope.scale,
                 static_cast<int>(c.kv_heads), static_cast<int>(c.head_dim), given.rows, executor);
          }};
}

absl::StatusOr<PrefixWay> CodedWay(std::string name, const Codec& codec,
                                   const ProbedModel& consumer, std::int32_t max_tokens,
                                   Executor& executor, const std::optional<CodeCut>& cut) {
  const auto coder = std::make_shared<Coder>(codec, consumer, cut, executor);
  const PrefixWay coded = {
      std::move(name), [coder](const ProducerRows& given, float* out) { coder->Kv(given, out); }};
  return RecomputedWay(
      coded, codec.run(),
      [coder](const ProducerRows& given, float* stream) { coder->Stream(given, stream); }, consumer,
      max_tokens, executor);
}

PrefixWay MixedWay(std::string name, const PrefixWay& first, const PrefixWay& second,
                   const std::vector<std::size_t>& layers) {
  return {std::move(name), [first, second, layers](const ProducerRows& given, float* out) {
            const bool named = std::find(layers.begin(), layers.end(),
                                         static_cast<std::size_t>(given.layer)) != layers.end();
            (named ? second : first).decode(given, out);
          }};
}

PrefixWay WithSeam(const PrefixWay& way, std::int32_t seam) {
  return {Cat(way.name, "+seam", seam), way.decode, seam};
}

}  // namespace baton
