// Helpers of the kernel tests: random data, instruction set levels, bit comparison.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu_features.h"
#include "kernels/dtype.h"

namespace baton {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

inline std::vector<float> RandomFloats(std::size_t n, unsigned seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

inline std::vector<IsaLevel> AvailableLevels() {
  std::vector<IsaLevel> levels;
  for (IsaLevel l : {IsaLevel::kGeneric, IsaLevel::kAvx2, IsaLevel::kAvx512}) {
    if (KernelsFor(l) != nullptr) levels.push_back(l);
  }
  return levels;
}

inline bool SameBits(const float* a, const float* b, std::size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && SameBits(a.data(), b.data(), a.size());
}

inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

}  // namespace baton
