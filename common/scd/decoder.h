// Turns codes into a consumer's K/V (REUSE, PATCH): the decoder half of a codec, packed for use.
//
//   decoder.Decode(layer, codes, components, first_position, kv, executor);   // 64 rows
//
// Of a codec with a run, the stream that enters its first layer comes by DecodeStream, and the K/V
// of its layers by whoever holds the consumer's weights and runs them over it.
//
// Immutable and thread-safe. What is decoded for a row does not depend on other rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

// For patched layers, what the consumer's own attention makes of its input: inputs [rows, hidden]
// in any scale into kv [rows, 2 * kv_dim], [K | V] with K after k-norm and before RoPE.
// Thread-safe; what is made of a row does not depend on other rows. Whoever holds the consumer's
// weights gives it (KvProjection in common/model), so that codes know no model.
using ConsumerProjection = std::function<void(int layer, const float* inputs, std::int64_t rows,
                                              float* kv, Executor& executor)>;

class CodeDecoder {
 public:
  // `codec` passed CheckCodec; `rope` is the consumer's. A codec that is patched needs
  // `projection`, others ignore it.
  CodeDecoder(const Codec& codec, DecoderRope rope, Executor& executor,
              ConsumerProjection projection = nullptr);

  const std::string& encoder_digest() const { return encoder_digest_; }
  const std::string& digest() const { return digest_; }
  const CodeShape& shape() const { return shape_; }
  std::int64_t hidden() const { return hidden_; }
  std::int64_t kv_dim() const { return kv_dim_; }
  bool patched() const { return patched_; }  // some layer is
  LayerRun run() const { return run_; }      // empty: none
  std::optional<double> held_out_kl() const { return held_out_kl_; }

  // What a block's codes stand for, cut to the first `components` of the layer: z [64, rank].
  // Dropped components count as their mean, 0.
  void Components(int layer, const std::byte* codes, int components, float* z) const;
  // A block's codes, cut alike, into kv [64, 2 * kv_dim]: K
  // rotated at positions first_position.., then V. For layers outside the run.
  void Decode(int layer, const std::byte* codes, int components, std::int32_t first_position,
              float* kv, Executor& executor) const;
  // The codes of the run's first layer, cut alike, into what enters it: stream [64, hidden]. For
  // codecs with a run.
  void DecodeStream(const std::byte* codes, int components, float* stream,
                    Executor& executor) const;

 private:
  struct Layer {
    std::vector<float> levels;  // as in the codec
    PackedMatrix b;             // [decoded_width, rank], or of no rows
    std::vector<float> offset;  // [decoded_width]
    LayerKind kind = LayerKind::kReuse;
    PackedMatrix mlp_in;   // [2 * rank, rank], or of no rows
    PackedMatrix mlp_out;  // [hidden, 2 * rank], or of no rows
  };
  // B z + offset + W_2 silu(W_1 z) of 64 rows, into out [64, width].
  static void Map(const Layer& layer, const std::vector<float>& z, std::int64_t width, float* out,
                  Executor& executor);

  std::string encoder_digest_;
  std::string digest_;
  std::optional<double> held_out_kl_;
  bool patched_;
  LayerRun run_;
  std::int64_t hidden_;
  std::int64_t kv_dim_;
  int kv_heads_;
  int head_dim_;
  DecoderRope rope_;
  ConsumerProjection projection_;
  CodeShape shape_;
  std::vector<Layer> layers_;
};

}  // namespace baton
