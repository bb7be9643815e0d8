#include "common/scd/decoder.h"

#include <algorithm>
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

CodeDecoder::CodeDecoder(const Codec& codec, DecoderRope rope, Executor& executor)
    : encoder_digest_(codec.EncoderDigest()),
      digest_(codec.Digest()),
      held_out_kl_(codec.held_out_kl()),
      kv_dim_(codec.identity.kv_dim()),
      kv_heads_(static_cast<int>(codec.identity.kv_heads)),
      head_dim_(static_cast<int>(codec.identity.head_dim)),
      rope_(std::move(rope)),
      shape_(CodeShape::Of(codec)) {
  for (const CodecLayer& from : codec.layers) {
    layers_.push_back({from.levels,
                       PackedMatrix::Pack(from.decoder.data(), 2 * kv_dim_, from.rank(),
                                          WeightFormat::kF32, executor),
                       from.offset});
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

void CodeDecoder::Decode(int layer, const std::byte* codes, int components,
                         std::int32_t first_position, float* kv, Executor& executor) const {
  const Layer& l = layers_[static_cast<std::size_t>(layer)];
  const std::size_t rank = shape_.layers[static_cast<std::size_t>(layer)].bits.size();
  std::vector<float> z(kCodeBlockRows * rank);
  Components(layer, codes, components, z.data());
  const std::int64_t ld = 2 * kv_dim_;
  for (int r = 0; r < kCodeBlockRows; ++r) {
    std::copy(l.offset.begin(), l.offset.end(), kv + r * ld);
  }
  const auto cols = static_cast<std::int64_t>(rank);
  if (cols > 0) {
    l.b.Multiply(z.data(), cols, kCodeBlockRows, kv, ld, /*accumulate=*/true, executor);
  }
  std::int32_t positions[kCodeBlockRows];
  std::iota(positions, positions + kCodeBlockRows, first_position);
  Rope(kv, ld, positions, rope_.inv_freq.data(), rope_.scale, kv_heads_, head_dim_, kCodeBlockRows,
       executor);
}

}  // namespace baton
