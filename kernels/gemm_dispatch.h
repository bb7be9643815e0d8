// The entries of the kernel table for matrix products: from a format at run time to its tile.
// Compiled once per instruction set. Internal to the room.
#pragma once

#include "kernels/gemm_impl.h"
#include "kernels/gemm_quant_impl.h"

namespace baton {
namespace {

#define BATON_QUANT_FORMATS(call)     \
  case WeightFormat::kQ8_0:           \
    return call(WeightFormat::kQ8_0); \
  case WeightFormat::kQ4_0:           \
    return call(WeightFormat::kQ4_0); \
  case WeightFormat::kQ4_1:           \
    return call(WeightFormat::kQ4_1); \
  case WeightFormat::kQ5_0:           \
    return call(WeightFormat::kQ5_0); \
  case WeightFormat::kQ5_1:           \
    return call(WeightFormat::kQ5_1); \
  case WeightFormat::kQ4_K:           \
    return call(WeightFormat::kQ4_K); \
  case WeightFormat::kQ5_K:           \
    return call(WeightFormat::kQ5_K); \
  case WeightFormat::kQ6_K:           \
    return call(WeightFormat::kQ6_K)

void GemmTile(const GemmTileArgs& g) {
  switch (g.format) {
    case WeightFormat::kF32:
      return TileOfType<WeightFormat::kF32>(g);
    case WeightFormat::kBF16:
      return TileOfType<WeightFormat::kBF16>(g);
    case WeightFormat::kF16:
      return TileOfType<WeightFormat::kF16>(g);
#define BATON_TILE(q) QuantTileOfFormat<q>(g)
      BATON_QUANT_FORMATS(BATON_TILE);
#undef BATON_TILE
  }
}

void UnpackPanel(WeightFormat format, const std::byte* w, std::int64_t k, float* dst) {
  switch (format) {
    case WeightFormat::kF32:
      return UnpackPanelOf<WeightFormat::kF32>(w, k, dst);
    case WeightFormat::kBF16:
      return UnpackPanelOf<WeightFormat::kBF16>(w, k, dst);
    case WeightFormat::kF16:
      return UnpackPanelOf<WeightFormat::kF16>(w, k, dst);
#define BATON_UNPACK(q) UnpackQuantPanel<q>(w, k, dst)
      BATON_QUANT_FORMATS(BATON_UNPACK);
#undef BATON_UNPACK
  }
}

#undef BATON_QUANT_FORMATS

}  // namespace
}  // namespace baton
