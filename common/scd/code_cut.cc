#include "common/scd/code_cut.h"

#include <algorithm>
#include <tuple>

#include "common/base/strings.h"

namespace baton {

double CodeCut::bytes_per_token() const {
  std::size_t bytes = 0;
  for (const Layer& layer : layers) bytes += layer.block_bytes;
  return static_cast<double>(bytes) / kCodeBlockRows;
}

CodeShape CodeShape::Of(const Codec& codec) {
  CodeShape shape;
  for (const CodecLayer& layer : codec.layers) {
    shape.layers.push_back({layer.bits, layer.importance});
  }
  return shape;
}

CodeCut WholeCode(const CodeShape& shape) {
  CodeCut cut;
  for (const CodeShape::Layer& layer : shape.layers) {
    CodeCut::Layer whole{static_cast<int>(layer.bits.size()), 0};
    for (const std::uint8_t bits : layer.bits) whole.block_bytes += ComponentBytes(bits);
    cut.layers.push_back(whole);
  }
  return cut;
}

absl::StatusOr<CodeCut> CutCode(const CodeShape& shape, std::uint32_t bytes_per_token) {
  struct Component {
    float importance;
    std::size_t layer;
    std::size_t index;
  };
  std::vector<Component> all;  // but for the first ones
  CodeCut cut;
  std::uint64_t used = 0;
  const auto take = [&](std::size_t layer, std::size_t index) {
    const std::size_t bytes = ComponentBytes(shape.layers[layer].bits[index]);
    ++cut.layers[layer].components;
    cut.layers[layer].block_bytes += bytes;
    used += bytes;
  };
  cut.layers.resize(shape.layers.size());
  for (std::size_t l = 0; l < shape.layers.size(); ++l) {
    const auto& importance = shape.layers[l].importance;
    if (importance.empty()) continue;
    take(l, 0);
    for (std::size_t i = 1; i < importance.size(); ++i) all.push_back({importance[i], l, i});
  }
  const std::uint64_t budget = std::uint64_t{bytes_per_token} * kCodeBlockRows;
  if (used > budget) {
    return absl::InvalidArgumentError(
        Cat("bytes per token: ", bytes_per_token, "; this code takes ",
            (used + kCodeBlockRows - 1) / kCodeBlockRows, " at least and ",
            WholeCode(shape).bytes_per_token(), " in all"));
  }
  std::sort(all.begin(), all.end(), [](const Component& a, const Component& b) {
    return std::tie(b.importance, a.layer, a.index) < std::tie(a.importance, b.layer, b.index);
  });
  // The first one that does not fit ends it: a smaller budget's cut is then part of a larger one's.
  for (const Component& c : all) {
    if (used + ComponentBytes(shape.layers[c.layer].bits[c.index]) > budget) break;
    take(c.layer, c.index);
  }
  return cut;
}

}  // namespace baton
