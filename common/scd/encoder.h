// Makes codes of a producer's states: the encoder half of a codec, packed for use.
//
//   encoder.Encode(layer, rows, ld, first_row, out, executor);   // 64 rows, all components
//
// A row of source h is followed by its rms, the root of mean square + epsilon: the layer's input is
// the row times it. Layers that code the stream read it.
//
// Immutable and thread-safe. The codes of a row do not depend on other rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/scd/code_cut.h"
#include "common/scd/codec.h"
#include "kernels/executor.h"
#include "kernels/packed_matrix.h"

namespace baton {

class CodeEncoder {
 public:
  // `codec` passed CheckCodec.
  CodeEncoder(const Codec& codec, Executor& executor);

  const std::string& digest() const { return digest_; }
  CodeSource source() const { return source_; }
  std::int64_t width() const { return width_; }  // numbers that a component is made of
  // Floats of a row: width, and of source h the rms.
  std::int64_t row_width() const { return width_ + (source_ == CodeSource::kHidden ? 1 : 0); }
  const CodeShape& shape() const { return shape_; }
  const CodeCut& whole() const { return whole_; }

  // Codes of a block: `rows` [64, row_width] with row stride `ld`; `out` whole().layers[layer]
  // .block_bytes. Rows below `first_row` are not read; their bits are 0. A native layer has none.
  void Encode(int layer, const float* rows, std::int64_t ld, int first_row, std::byte* out,
              Executor& executor) const;

 private:
  struct Layer {
    std::vector<float> mean;        // [width]
    PackedMatrix a;                 // [rank, width], or of no rows
    std::vector<float> thresholds;  // of each component in turn 2^bits - 1: midpoints of levels
    bool stream = false;            // of the row times its rms
  };

  std::string digest_;
  CodeSource source_;
  std::int64_t width_;
  CodeShape shape_;
  CodeCut whole_;
  std::vector<Layer> layers_;
};

}  // namespace baton
