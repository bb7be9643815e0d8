#include "common/scd/calibrate/codec_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace baton {
namespace {

float Nearest(float z, const float* begin, const float* end) {
  const float* above = std::lower_bound(begin, end, z);
  if (above == begin) return *begin;
  if (above == end || z - above[-1] <= *above - z) return above[-1];
  return *above;
}

void CodeRow(const CodecLayer& layer, const float* x, float* out) {
  const std::size_t in = layer.mean.size();
  std::vector<float> z;
  const float* levels = layer.levels.data();
  const float* a = layer.encoder.data();
  for (const std::uint8_t bits : layer.bits) {
    float sum = 0;
    for (std::size_t i = 0; i < in; ++i) sum += a[i] * (x[i] - layer.mean[i]);
    a += in;
    const float* end = levels + (std::size_t{1} << bits);
    z.push_back(Nearest(sum, levels, end));
    levels = end;
  }
  const float* b = layer.decoder.data();
  for (std::size_t o = 0; o < layer.offset.size(); ++o) {
    float sum = layer.offset[o];
    for (const float component : z) sum += *b++ * component;
    out[o] = sum;
  }
}

}  // namespace

void CodeRows(const Codec& codec, int layer, std::int64_t rows, const float* x, float* out,
              Executor& executor) {
  const CodecLayer& l = codec.layers[static_cast<std::size_t>(layer)];
  const auto in = static_cast<std::int64_t>(l.mean.size());
  const auto width = static_cast<std::int64_t>(l.offset.size());
  executor.ParallelFor(rows, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) CodeRow(l, x + r * in, out + r * width);
  });
}

}  // namespace baton
