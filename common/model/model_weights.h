// The packed weights behind Model and AdapterSet. For the room's own .cc files and for tools that
// read weights (calibration); everybody else uses model.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "common/weights/model_config.h"
#include "kernels/attention.h"
#include "kernels/packed_matrix.h"

namespace baton {

// Linears that read the same input are one matrix of concatenated rows.
struct LayerWeights {
  std::vector<float> input_norm;           // gamma [hidden]
  PackedMatrix qkv;                        // [(heads + 2 kv_heads) * head_dim, hidden]
  std::vector<float> qkv_bias;             // [qkv.rows()], or empty
  std::vector<float> q_norm;               // gamma [head_dim], or empty
  std::vector<float> k_norm;               // gamma [head_dim], or empty
  PackedMatrix o;                          // [hidden, heads * head_dim]
  std::vector<float> o_bias;               // [hidden], or empty
  std::vector<float> post_attention_norm;  // gamma [hidden]
  PackedMatrix gate_up;                    // [2 * ffn, hidden]: gate rows, then up rows
  PackedMatrix down;                       // [hidden, ffn]
  int window = 0;                          // sliding window in tokens; 0: none
};

struct Model::Weights {
  ModelConfig config;
  WeightDType dtype = WeightDType::kF32;
  std::string content_digest;
  std::string served_digest;
  std::size_t bytes = 0;
  std::size_t own_bytes = 0;
  AttentionShape attention;  // without the window, which is the layer's
  float rms_eps = 0;
  std::vector<float> inv_freq;  // [head_dim / 2]
  PackedMatrix embedding;       // [vocab, hidden]
  PackedMatrix head;            // [vocab, hidden]; shares the embedding's panels when tied
  std::vector<float> final_norm;
  std::vector<LayerWeights> layers;

  std::int64_t q_dim() const { return config.heads * config.head_dim; }
  std::int64_t kv_dim() const { return config.kv_heads * config.head_dim; }
};

// The adapter's part of one (possibly fused) linear: y[:, column..] += (x A^T)[:, rank part] B^T.
struct LoraDelta {
  struct Part {
    std::int64_t a_row = 0;   // first row of this part in `a`
    std::int64_t column = 0;  // first output column it adds to
    PackedMatrix b;           // [out, rank], times the adapter's scale
  };
  PackedMatrix a;  // [sum of the parts' ranks, in]
  std::vector<Part> parts;
};

struct AdapterSet::Packed {
  struct Layer {
    LoraDelta qkv, o, gate_up, down;
  };
  std::string digest;
  std::vector<Layer> layers;
};

}  // namespace baton
