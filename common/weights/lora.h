// LoRA adapters as PEFT saves them: adapter_config.json beside adapter_model.safetensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/weights/model_config.h"

namespace baton {

// One adapted linear layer: y += scale * B (A x).
struct LoraModule {
  int64_t rank = 0;
  int64_t in = 0;
  int64_t out = 0;
  std::vector<float> a;  // [rank, in]
  std::vector<float> b;  // [out, rank], rows in Hugging Face order
  float scale = 0;       // alpha / rank, or alpha / sqrt(rank) with rslora
};

// By module: "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj".
using LoraLayer = std::map<std::string, LoraModule, std::less<>>;

struct LoraAdapter {
  std::string name;
  std::string digest;  // XXH3-128, 32 hex digits, over scales and tensors, not over names of files
  int64_t max_rank = 0;
  std::vector<LoraLayer> layers;  // [config.layers]; a layer without adapted modules is empty
};

inline constexpr int64_t kMaxLoraRank = 1024;

// Errors name the folder and field or tensor: InvalidArgument (rank above `max_rank` with both
// numbers, wrong shape with expected and given, missing or left-over tensor), Unimplemented
// (modules_to_save, use_dora, bias, fan_in_fan_out … by name).
absl::StatusOr<LoraAdapter> LoadLoraAdapter(const std::string& dir, const std::string& name,
                                            const ModelConfig& config,
                                            int64_t max_rank = kMaxLoraRank);

}  // namespace baton
