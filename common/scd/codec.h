// The codec of a producer and a consumer, as calibration leaves it and both nodes load it
// (docs/artifact_format.md). Per layer:
//
//   z = A (x - mean)        [rank]  x: what the producer sees there, by `source`
//   q_i = code of z_i       bits[i] bits: index of the nearest of 2^bits[i] levels
//   [K | V] = B z' + offset [2 * kv_dim]  of the consumer; K after k-norm, before RoPE
//
// A patched layer is decoded to the consumer's attention input instead, of which its own weights
// (with its adapter) make K and V:
//
//   h = B z' + offset + W_2 silu(W_1 z')   [hidden], to unit RMS by its own norm
//
// A run of layers may have one code in common, of the residual stream that enters the first of
// them. The consumer computes those layers itself over the prefix, so the others of the run have
// no code:
//
//   z = A (s - mean)            s: the producer's stream, as it is (source h, times its rms)
//   s' = B z' + offset [hidden] the consumer's stream
//
// Components are in order of falling importance, so the first of them are a coarser code of their
// own: a cut (code_cut.h) says how many of each layer travel. The encoder is everything but B and
// offset; codecs of one encoder share a code on the wire and in the producer's store.
//
// Source: arXiv 2606.07684, section 4 (REUSE, PATCH); reduced-rank regression, A. Izenman (1975);
// recomputed runs of layers, DroidSpeak (arXiv 2411.02820).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/weights/layer_run.h"

namespace baton {

// 2: some layers are patched. 3: there is a run. Files without either are written as 1.
inline constexpr int kCodecVersion = 3;
inline constexpr std::int64_t kMaxCodecLayers = 1024;
inline constexpr std::int64_t kMaxCodecWidth = 1 << 16;  // of x, and of [K | V]
inline constexpr std::int64_t kMaxCodecRank = 1 << 12;

enum class CodeSource {
  kHidden,  // the normalised attention input before gamma: [hidden]
  kKv,      // the producer's [K | V], K after k-norm, before RoPE: [2 * kv_dim]
};
const char* CodeSourceName(CodeSource source);  // "h", "kv"

enum class LayerKind {
  kReuse,   // decodes to K and V
  kPatch,   // to the attention input
  kStream,  // the first layer of the run: from and to the residual stream that enters it
  kNative,  // behind it: no code
};
const char* LayerKindName(LayerKind kind);  // "reuse", "patch", "stream", "native"

// Whose codec it is. Digests are of contents, whatever dtype the weights are served in.
struct CodecIdentity {
  std::string producer_weights;
  std::string consumer_weights;  // adapter included
  std::string tokenizer;
  CodeSource source = CodeSource::kHidden;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;

  std::int64_t kv_dim() const { return kv_heads * head_dim; }
  // Of what a layer is decoded to.
  std::int64_t decoded_width(LayerKind kind) const {
    if (kind == LayerKind::kNative) return 0;
    return kind == LayerKind::kReuse ? 2 * kv_dim() : hidden;
  }
  std::int64_t source_width() const {
    return source == CodeSource::kHidden ? hidden : 2 * kv_dim();
  }
};

// Of a native layer everything is empty.
struct CodecLayer {
  std::vector<float> mean;         // [source_width]
  std::vector<float> encoder;      // A [rank, source_width]
  std::vector<std::uint8_t> bits;  // [rank >= 1], each of kCodeBits
  std::vector<float> importance;   // [rank] > 0, falling; one scale for all layers
  std::vector<float> levels;       // of each component in turn 2^bits, ascending
  std::vector<float> decoder;      // B [decoded_width, rank]
  std::vector<float> offset;       // [decoded_width]
  LayerKind kind = LayerKind::kReuse;
  // Of a patched layer, or both empty: the decoder is linear.
  std::vector<float> mlp_in;   // W_1 [2 * rank, rank]
  std::vector<float> mlp_out;  // W_2 [hidden, 2 * rank]

  std::int64_t rank() const { return static_cast<std::int64_t>(bits.size()); }
};

struct Codec {
  CodecIdentity identity;
  std::vector<CodecLayer> layers;
  // What calibration measured and how, as JSON; carried, never interpreted here.
  std::string report = "{}";

  // 32 hex digits over what makes codes: identity's producer side, means, A, bits, importance,
  // levels, and which layer's is of the stream.
  std::string EncoderDigest() const;
  // And over the rest that makes K/V of them.
  std::string Digest() const;
  // Some layer is.
  bool patched() const;
  // The layers that the consumer computes itself; empty when there are none.
  LayerRun run() const;
  // Of its file.
  int version() const { return !run().empty() ? 3 : patched() ? 2 : 1; }
  // Of all components together.
  double bytes_per_token() const;
  // What calibration measured for all components, in nats a predicted token; nothing when the
  // report does not say.
  std::optional<double> held_out_kl() const;
};

// What `consumer_weights` is of weights with an adapter; without one (empty), the weights' own.
std::string ConsumerWeightsDigest(const std::string& weights, const std::string& adapter_digest);

inline constexpr std::uint8_t kCodeBits[] = {1, 2, 3, 4, 6, 8};

// INVALID_ARGUMENT naming layer, field, what is there and what is expected.
absl::Status CheckCodec(const Codec& codec);

// Rounds A and B to what 8 bits and a scale per row can say; a code made with it is made and read
// by the rounded numbers, so measure after it.
void RoundToInt8(Codec& codec);

// How A and B lie in a file. kInt8 loses nothing of a codec that RoundToInt8 made.
enum class CodecStorage { kF32, kInt8 };

// A safetensors file with the identity in its metadata. Errors name the file and the field: as
// CheckCodec; UNIMPLEMENTED for another version.
absl::StatusOr<Codec> LoadCodec(const std::string& path);
// Written beside and renamed: a reader sees the whole file or none.
absl::Status SaveCodec(const Codec& codec, const std::string& path,
                       CodecStorage storage = CodecStorage::kF32);

}  // namespace baton
