#include "common/scd/decoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/elementwise.h"

namespace baton {
namespace {

int CodeAt(const std::byte* planes, int bits, int row) {
  int code = 0;
  for (int p = 0; p < bits; ++p) {
    const auto byte = static_cast<unsigned>(planes[p * kCodeBlockRows / 8 + row / 8]);
    code |= static_cast<int>(byte >> row % 8 & 1) << p;
  }
  return code;
}

}  // namespace

CodeDecoder::CodeDecoder(const Codec& codec, DecoderRope rope, Executor& executor,
                         ConsumerProjection projection)
    : encoder_digest_(codec.EncoderDigest()),
      digest_(codec.Digest()),
      held_out_kl_(codec.held_out_kl()),
      patched_(codec.patched()),
      run_(codec.run()),
      hidden_(codec.identity.hidden),
      kv_dim_(codec.identity.kv_dim()),
      kv_heads_(static_cast<int>(codec.identity.kv_heads)),
      head_dim_(static_cast<int>(codec.identity.head_dim)),
      rope_(std::move(rope)),
      projection_(std::move(projection)),
      shape_(CodeShape::Of(codec)) {
  const auto pack = [&](const std::vector<float>& matrix, std::int64_t rows, std::int64_t cols) {
    if (matrix.empty()) return PackedMatrix();
    return PackedMatrix::Pack(matrix.data(), rows, cols, WeightFormat::kF32, executor);
  };
  for (const CodecLayer& from : codec.layers) {
    const std::int64_t rank = from.rank();
    layers_.push_back({from.levels,
                       pack(from.decoder, codec.identity.decoded_width(from.kind), rank),
                       from.offset, from.kind, pack(from.mlp_in, 2 * rank, rank),
                       pack(from.mlp_out, hidden_, 2 * rank)});
  }
}

void CodeDecoder::Components(int layer, const std::byte* codes, int components, float* z) const {
  const std::vector<std::uint8_t>& bits = shape_.layers[static_cast<std::size_t>(layer)].bits;
  const std::size_t rank = bits.size();
  std::fill_n(z, kCodeBlockRows * rank, 0.0f);
  const float* levels = layers_[static_cast<std::size_t>(layer)].levels.data();
  for (std::size_t i = 0; i < static_cast<std::size_t>(components); ++i) {
    for (int r = 0; r < kCodeBlockRows; ++r) {
      z[static_cast<std::size_t>(r) * rank + i] = levels[CodeAt(codes, bits[i], r)];
    }
    codes += ComponentBytes(bits[i]);
    levels += std::size_t{1} << bits[i];
  }
}

void CodeDecoder::Map(const Layer& layer, const std::vector<float>& z, std::int64_t width,
                      float* out, Executor& executor) {
  for (int r = 0; r < kCodeBlockRows; ++r) {
    std::copy(layer.offset.begin(), layer.offset.end(), out + r * width);
  }
  const auto rank = static_cast<std::int64_t>(z.size()) / kCodeBlockRows;
  if (rank == 0) return;
  layer.b.Multiply(z.data(), rank, kCodeBlockRows, out, width, /*accumulate=*/true, executor);
  const std::int64_t inner = layer.mlp_in.rows();
  if (inner == 0) return;
  std::vector<float> y(static_cast<std::size_t>(kCodeBlockRows * inner));
  layer.mlp_in.Multiply(z.data(), rank, kCodeBlockRows, y.data(), inner, /*accumulate=*/false,
                        executor);
  for (float& x : y) x /= 1 + std::exp(-x);
  layer.mlp_out.Multiply(y.data(), inner, kCodeBlockRows, out, width, /*accumulate=*/true,
                         executor);
}

void CodeDecoder::Decode(int layer, const std::byte* codes, int components,
                         std::int32_t first_position, float* kv, Executor& executor) const {
  const Layer& l = layers_[static_cast<std::size_t>(layer)];
  const std::size_t rank = shape_.layers[static_cast<std::size_t>(layer)].bits.size();
  std::vector<float> z(kCodeBlockRows * rank);
  Components(layer, codes, components, z.data());
  const std::int64_t ld = 2 * kv_dim_;
  if (l.kind == LayerKind::kPatch) {
    std::vector<float> inputs(static_cast<std::size_t>(kCodeBlockRows * hidden_));
    Map(l, z, hidden_, inputs.data(), executor);
    projection_(layer, inputs.data(), kCodeBlockRows, kv, executor);
  } else {
    Map(l, z, ld, kv, executor);
  }
  std::int32_t positions[kCodeBlockRows];
  std::iota(positions, positions + kCodeBlockRows, first_position);
  Rope(kv, ld, positions, rope_.inv_freq.data(), rope_.scale, kv_heads_, head_dim_, kCodeBlockRows,
       executor);
}

void CodeDecoder::DecodeStream(const std::byte* codes, int components, float* stream,
                               Executor& executor) const {
  const auto first = static_cast<std::size_t>(run_.begin);
  std::vector<float> z(kCodeBlockRows * shape_.layers[first].bits.size());
  Components(run_.begin, codes, components, z.data());
  Map(layers_[first], z, hidden_, stream, executor);
}

}  // namespace baton
