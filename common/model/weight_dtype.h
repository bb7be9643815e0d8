// How a model's weights are held in memory, as a user chooses it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/weights/tensor_view.h"
#include "kernels/weight_format.h"

namespace baton {

enum class WeightDType : std::uint8_t {
  kF32,
  kBF16,
  kF16,
  kInt8,  // codes of 8 bits, blocks of 32 (GGUF's Q8_0)
  kInt4,  // codes of 4 bits, blocks of 32 (GGUF's Q4_1); the embedding and the head as kInt8
  kFile,  // every tensor as its file stores it
};

// "fp32", "bf16", "fp16", "int8", "int4", "file".
const char* WeightDTypeName(WeightDType dtype);
const std::vector<std::pair<std::string, WeightDType>>& WeightDTypeNames();

// The format that holds what a file stores, value for value. Of types that IsDequantizable accepts.
WeightFormat FormatOfStored(StoredDType stored);

// The format that a matrix is held in. `vocabulary`: it is the embedding or the head.
WeightFormat FormatFor(WeightDType dtype, StoredDType stored, bool vocabulary);

}  // namespace baton
