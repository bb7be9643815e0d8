#include <cuda_runtime.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device_utils.cuh"
#include "kernels/elementwise_math.h"

namespace baton::cuda {
namespace {

// More blocks than any chip holds at once; rows beyond are taken in strides.
constexpr int kMaxBlocks = 8192;

__global__ void RmsNormKernel(const float* x, std::int64_t ldx, const float* gamma, float eps,
                              std::int64_t n, std::int64_t d, float* y, std::int64_t ldy) {
  __shared__ float partial[32];
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (std::int64_t r = blockIdx.x; r < n; r += gridDim.x) {
    const float* row = x + r * ldx;
    float sum = 0.0f;
    for (std::int64_t i = threadIdx.x; i < d; i += blockDim.x) sum = fmaf(row[i], row[i], sum);
    sum = WarpSum(sum);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int w = 0; w < warps; ++w) sum += partial[w];
    const float inv = 1.0f / sqrtf(sum / static_cast<float>(d) + eps);
    for (std::int64_t i = threadIdx.x; i < d; i += blockDim.x) {
      y[r * ldy + i] = gamma == nullptr ? row[i] * inv : RmsNormT(row[i], inv, gamma[i]);
    }
    __syncthreads();
  }
}

__global__ void RopeKernel(float* x, std::int64_t ldx, const std::int32_t* positions,
                           const float* inv_freq, float scaling, int heads, int head_dim,
                           std::int64_t n) {
  const int half = head_dim / 2;
  for (std::int64_t r = blockIdx.x; r < n; r += gridDim.x) {
    for (int i = static_cast<int>(threadIdx.x); i < half; i += static_cast<int>(blockDim.x)) {
      // One angle serves all heads.
      const SinCos sc = PreciseSinCos(static_cast<float>(positions[r]) * inv_freq[i]);
      for (int h = 0; h < heads; ++h) {
        float* lo = x + r * ldx + static_cast<std::int64_t>(h) * head_dim + i;
        const RopePair<float> p = RotatePair(lo[0], lo[half], sc.cos * scaling, sc.sin * scaling);
        lo[0] = p.lo;
        lo[half] = p.hi;
      }
    }
  }
}

struct SiluMulOp {
  __device__ float operator()(float gate, float up) const { return SiluT(gate) * up; }
};
struct AddOp {
  __device__ float operator()(float x, float y) const { return x + y; }
};

// out = op(a, b), four elements a thread where all rows are aligned for it.
template <typename Op, bool kVector>
__global__ void BinaryKernel(Op op, const float* a, std::int64_t lda, const float* b,
                             std::int64_t ldb, std::int64_t n, std::int64_t d, float* out,
                             std::int64_t ldo) {
  for (std::int64_t r = blockIdx.x; r < n; r += gridDim.x) {
    const float* ra = a + r * lda;
    const float* rb = b + r * ldb;
    float* ro = out + r * ldo;
    if constexpr (kVector) {
      for (std::int64_t i = threadIdx.x; i < d / 4; i += blockDim.x) {
        const float4 u = reinterpret_cast<const float4*>(ra)[i];
        const float4 v = reinterpret_cast<const float4*>(rb)[i];
        reinterpret_cast<float4*>(ro)[i] =
            make_float4(op(u.x, v.x), op(u.y, v.y), op(u.z, v.z), op(u.w, v.w));
      }
    } else {
      for (std::int64_t i = threadIdx.x; i < d; i += blockDim.x) ro[i] = op(ra[i], rb[i]);
    }
  }
}

bool Aligned(const void* p, std::int64_t ld) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && ld % 4 == 0;
}

template <typename Op>
int Binary(Op op, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
           std::int64_t n, std::int64_t d, float* out, std::int64_t ldo, Stream stream) {
  const bool vector = d % 4 == 0 && Aligned(a, lda) && Aligned(b, ldb) && Aligned(out, ldo);
  const RowLaunch plan = PlanRows(n, vector ? d / 4 : d, kMaxBlocks);
  if (plan.blocks == 0) return cudaSuccess;
  if (vector) {
    BinaryKernel<Op, true>
        <<<plan.blocks, plan.threads, 0, stream>>>(op, a, lda, b, ldb, n, d, out, ldo);
  } else {
    BinaryKernel<Op, false>
        <<<plan.blocks, plan.threads, 0, stream>>>(op, a, lda, b, ldb, n, d, out, ldo);
  }
  return cudaGetLastError();
}

}  // namespace

const char* CudaErrorText(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

int RmsNorm(const float* x, std::int64_t ldx, const float* gamma, float eps, std::int64_t n,
            std::int64_t d, float* y, std::int64_t ldy, Stream stream) {
  const RowLaunch plan = PlanRows(n, d, kMaxBlocks);
  if (plan.blocks == 0) return cudaSuccess;
  RmsNormKernel<<<plan.blocks, plan.threads, 0, stream>>>(x, ldx, gamma, eps, n, d, y, ldy);
  return cudaGetLastError();
}

int Rope(float* x, std::int64_t ldx, const std::int32_t* positions, const float* inv_freq,
         float attention_scaling, int heads, int head_dim, std::int64_t n, Stream stream) {
  const RowLaunch plan = PlanRows(n, 4LL * (head_dim / 2), kMaxBlocks);
  if (plan.blocks == 0) return cudaSuccess;
  RopeKernel<<<plan.blocks, plan.threads, 0, stream>>>(x, ldx, positions, inv_freq,
                                                       attention_scaling, heads, head_dim, n);
  return cudaGetLastError();
}

int SiluMul(const float* gate, std::int64_t ldg, const float* up, std::int64_t ldu, std::int64_t n,
            std::int64_t d, float* y, std::int64_t ldy, Stream stream) {
  return Binary(SiluMulOp{}, gate, ldg, up, ldu, n, d, y, ldy, stream);
}

int AddRows(float* x, std::int64_t ldx, const float* y, std::int64_t ldy, std::int64_t n,
            std::int64_t d, Stream stream) {
  return Binary(AddOp{}, x, ldx, y, ldy, n, d, x, ldx, stream);
}

}  // namespace baton::cuda
