// Element-wise ops of a transformer block. All pointers fp32, row major.
#pragma once

#include <cstdint>

#include "kernels/executor.h"

namespace baton {

// y[n, d] = x / rms(x) * gamma; gamma may be null (the normalised pre-gamma input).
void RmsNorm(const float* x, std::int64_t ldx, const float* gamma, float eps, std::int64_t n,
             std::int64_t d, float* y, std::int64_t ldy, Executor& executor);

// Rotates pairs (i, i + head_dim/2) of each head (HF half-split form) in place:
// x [n, heads * head_dim]; inv_freq [head_dim / 2] float64-derived; positions [n]. Angles are
// computed in fp32 as position * inv_freq, as HF Transformers does. attention_scaling multiplies
// cos and sin (YaRN), 1 elsewhere.
void Rope(float* x, std::int64_t ldx, const std::int32_t* positions, const float* inv_freq,
          float attention_scaling, int heads, int head_dim, std::int64_t n, Executor& executor);

// y[n, d] = silu(gate) * up.
void SiluMul(const float* gate, std::int64_t ldg, const float* up, std::int64_t ldu, std::int64_t n,
             std::int64_t d, float* y, std::int64_t ldy, Executor& executor);

// x[n, d] += y[n, d].
void AddRows(float* x, std::int64_t ldx, const float* y, std::int64_t ldy, std::int64_t n,
             std::int64_t d, Executor& executor);

// log(sum(exp(x[0..d)))) in fp32 with fp64 accumulation.
float LogSumExp(const float* x, std::int64_t d);

}  // namespace baton
