// How much of a code travels, and where it lies.
//
// A block is 64 rows (a hash block) of one layer. Its codes are those of component 0, then of
// component 1 and so on; a component of b bits is b planes of 8 bytes: bit r of plane p
// (little-endian) is bit p of row r's code. So the first components of a block are the first bytes
// of it, and a cut is a prefix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/scd/codec.h"

namespace baton {

inline constexpr int kCodeBlockRows = 64;
// Bytes of a component in a block.
constexpr std::size_t ComponentBytes(int bits) { return std::size_t{kCodeBlockRows} / 8 * bits; }

// What decides about cuts: the components of each layer, as in a codec.
struct CodeShape {
  struct Layer {
    std::vector<std::uint8_t> bits;
    std::vector<float> importance;  // falling
    // Both are empty of a native layer: nothing of it travels.
  };
  std::vector<Layer> layers;

  static CodeShape Of(const Codec& codec);
};

struct CodeCut {
  struct Layer {
    int components = 0;
    std::size_t block_bytes = 0;
  };
  std::vector<Layer> layers;

  double bytes_per_token() const;
};

CodeCut WholeCode(const CodeShape& shape);

// The first component of each layer that has any, and then the most important ones of all layers,
// as long as they fit into `bytes_per_token`. Both ends of a hand-off make the same cut of it.
// INVALID_ARGUMENT names the smallest budget when it is below that.
absl::StatusOr<CodeCut> CutCode(const CodeShape& shape, std::uint32_t bytes_per_token);

}  // namespace baton
