// Turns codes into a consumer's K/V (REUSE): the decoder half of a codec, packed for use.
//
//   decoder.Decode(layer, codes, components, first_position, kv, executor);   // 64 rows
//
// Immutable and thread-safe. What is decoded for a row does not depend on other rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/scd/code_cut.h"
#include "common/scd/codec.h"
#include "kernels/executor.h"
#include "kernels/packed_matrix.h"

namespace baton {

// How the consumer rotates its keys; see Rope in kernels/elementwise.h.
struct DecoderRope {
  std::vector<float> inv_freq;  // [head_dim / 2]
  float scale = 1;
};

class CodeDecoder {
 public:
  // `codec` passed CheckCodec; `rope` is the consumer's.
  CodeDecoder(const Codec& codec, DecoderRope rope, Executor& executor);

  const std::string& encoder_digest() const { return encoder_digest_; }
  const std::string& digest() const { return digest_; }
  const CodeShape& shape() const { return shape_; }
  std::int64_t kv_dim() const { return kv_dim_; }
  std::optional<double> held_out_kl() const { return held_out_kl_; }

  // What a block's codes stand for, cut to the first `components` of the layer: z [64, rank].
  // Dropped components count as their mean, 0.
  void Components(int layer, const std::byte* codes, int components, float* z) const;
  // A block's codes, cut alike, into kv [64, 2 * kv_dim]: K
  // rotated at positions first_position.., then V.
  void Decode(int layer, const std::byte* codes, int components, std::int32_t first_position,
              float* kv, Executor& executor) const;

 private:
  struct Layer {
    std::vector<float> levels;  // as in the codec
    PackedMatrix b;             // [2 * kv_dim, rank]
    std::vector<float> offset;  // [2 * kv_dim]
  };

  std::string encoder_digest_;
  std::string digest_;
  std::optional<double> held_out_kl_;
  std::int64_t kv_dim_;
  int kv_heads_;
  int head_dim_;
  DecoderRope rope_;
  CodeShape shape_;
  std::vector<Layer> layers_;
};

}  // namespace baton
