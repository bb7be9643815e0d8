#include "common/scd/encoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace baton {
namespace {

// Bit planes of one component: `codes` of 64 rows.
void StorePlanes(const std::uint8_t* codes, int bits, std::byte* out) {
  for (int p = 0; p < bits; ++p) {
    std::uint8_t plane[kCodeBlockRows / 8] = {};
    for (int r = 0; r < kCodeBlockRows; ++r) {
      plane[r / 8] = static_cast<std::uint8_t>(plane[r / 8] | ((codes[r] >> p & 1) << r % 8));
    }
    std::memcpy(out + p * sizeof(plane), plane, sizeof(plane));
  }
}

}  // namespace

CodeEncoder::CodeEncoder(const Codec& codec, Executor& executor)
    : digest_(codec.EncoderDigest()),
      source_(codec.identity.source),
      width_(codec.identity.source_width()),
      shape_(CodeShape::Of(codec)),
      whole_(WholeCode(shape_)) {
  for (const CodecLayer& from : codec.layers) {
    Layer layer;
    layer.mean = from.mean;
    layer.stream = from.kind == LayerKind::kStream;
    if (from.rank() > 0) {
      layer.a = PackedMatrix::Pack(from.encoder.data(), from.rank(), width_, WeightFormat::kF32,
                                   executor);
    }
    const float* levels = from.levels.data();
    for (const std::uint8_t bits : from.bits) {
      const int count = 1 << bits;
      for (int i = 0; i + 1 < count; ++i) {
        layer.thresholds.push_back(levels[i] + (levels[i + 1] - levels[i]) / 2);
      }
      levels += count;
    }
    layers_.push_back(std::move(layer));
  }
}

void CodeEncoder::Encode(int layer, const float* rows, std::int64_t ld, int first_row,
                         std::byte* out, Executor& executor) const {
  const Layer& l = layers_[static_cast<std::size_t>(layer)];
  const std::vector<std::uint8_t>& bits = shape_.layers[static_cast<std::size_t>(layer)].bits;
  const auto rank = static_cast<std::int64_t>(bits.size());
  if (rank == 0) return;
  const std::int64_t count = kCodeBlockRows - first_row;
  std::vector<float> centred(static_cast<std::size_t>(count * width_));
  for (std::int64_t r = 0; r < count; ++r) {
    const float* x = rows + (first_row + r) * ld;
    const float scale = l.stream ? x[width_] : 1;
    std::transform(x, x + width_, l.mean.begin(), centred.begin() + r * width_,
                   [scale](float value, float mean) { return value * scale - mean; });
  }
  std::vector<float> z(static_cast<std::size_t>(count * rank));
  l.a.Multiply(centred.data(), width_, count, z.data(), rank, /*accumulate=*/false, executor);
  const float* thresholds = l.thresholds.data();
  for (std::int64_t i = 0; i < rank; ++i) {
    const int steps = (1 << bits[static_cast<std::size_t>(i)]) - 1;
    std::uint8_t codes[kCodeBlockRows] = {};
    for (std::int64_t r = 0; r < count; ++r) {
      const float* at = std::upper_bound(thresholds, thresholds + steps,
                                         z[static_cast<std::size_t>(r * rank + i)]);
      codes[first_row + r] = static_cast<std::uint8_t>(at - thresholds);
    }
    StorePlanes(codes, bits[static_cast<std::size_t>(i)], out);
    out += ComponentBytes(bits[static_cast<std::size_t>(i)]);
    thresholds += steps;
  }
}

}  // namespace baton
