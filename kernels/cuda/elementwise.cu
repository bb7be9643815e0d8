#include <cuda_runtime.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device_utils.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/elementwise_math.h"

namespace baton::cuda {
namespace {

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

// The same with four elements a thread; a row's second reading comes from the cache.
__global__ void RmsNormVectorKernel(const float* x, std::int64_t ldx, const float* gamma, float eps,
                                    std::int64_t n, std::int64_t d, float* y, std::int64_t ldy) {
  __shared__ float partial[32];
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (std::int64_t r = blockIdx.x; r < n; r += gridDim.x) {
    const float4* row = reinterpret_cast<const float4*>(x + r * ldx);
    float sum = 0.0f;
    for (std::int64_t i = threadIdx.x; i < d / 4; i += blockDim.x) {
      const float4 v = row[i];
      sum = fmaf(v.x, v.x, sum);
      sum = fmaf(v.y, v.y, sum);
      sum = fmaf(v.z, v.z, sum);
      sum = fmaf(v.w, v.w, sum);
    }
    sum = WarpSum(sum);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int w = 0; w < warps; ++w) sum += partial[w];
    const float inv = 1.0f / sqrtf(sum / static_cast<float>(d) + eps);
    for (std::int64_t i = threadIdx.x; i < d / 4; i += blockDim.x) {
      const float4 v = row[i];
      const float4 g = gamma == nullptr ? make_float4(1.0f, 1.0f, 1.0f, 1.0f)
                                        : reinterpret_cast<const float4*>(gamma)[i];
      // Times 1 changes no bit.
      reinterpret_cast<float4*>(y + r * ldy)[i] =
          make_float4(RmsNormT(v.x, inv, g.x), RmsNormT(v.y, inv, g.y), RmsNormT(v.z, inv, g.z),
                      RmsNormT(v.w, inv, g.w));
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

template <typename Op>
LaunchStatus Binary(const char* name, Op op, const float* a, std::int64_t lda, const float* b,
                    std::int64_t ldb, std::int64_t n, std::int64_t d, float* out, std::int64_t ldo,
                    Stream stream) {
  const bool vector = d % 4 == 0 && Aligned16(a, lda) && Aligned16(b, ldb) && Aligned16(out, ldo);
  const LaunchSizes sizes = RowSizes(PlanRows(n, vector ? d / 4 : d, kMaxBlocks));
  return vector ? Launch(name, BinaryKernel<Op, true>, sizes, stream, op, a, lda, b, ldb, n, d, out,
                         ldo)
                : Launch(name, BinaryKernel<Op, false>, sizes, stream, op, a, lda, b, ldb, n, d,
                         out, ldo);
}

__global__ void CopyKernel(const float4* src, std::int64_t n, float4* dst) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += step) {
    dst[i] = src[i];
  }
}
__global__ void CopyTailKernel(const float* src, std::int64_t begin, std::int64_t n, float* dst) {
  const std::int64_t i = begin + threadIdx.x;
  if (i < n) dst[i] = src[i];
}

}  // namespace

LaunchStatus RmsNorm(const float* x, std::int64_t ldx, const float* gamma, float eps,
                     std::int64_t n, std::int64_t d, float* y, std::int64_t ldy, Stream stream) {
  const bool vector = d % 4 == 0 && Aligned16(x, ldx) && Aligned16(y, ldy) &&
                      (gamma == nullptr || Aligned16(gamma, 0));
  const LaunchSizes sizes = RowSizes(PlanRows(n, vector ? d / 4 : d, kMaxBlocks));
  return vector
             ? Launch("rms_norm", RmsNormVectorKernel, sizes, stream, x, ldx, gamma, eps, n, d, y,
                      ldy)
             : Launch("rms_norm", RmsNormKernel, sizes, stream, x, ldx, gamma, eps, n, d, y, ldy);
}

LaunchStatus Rope(float* x, std::int64_t ldx, const std::int32_t* positions, const float* inv_freq,
                  float attention_scaling, int heads, int head_dim, std::int64_t n, Stream stream) {
  return Launch("rope", RopeKernel, RowSizes(PlanRows(n, 4LL * (head_dim / 2), kMaxBlocks)), stream,
                x, ldx, positions, inv_freq, attention_scaling, heads, head_dim, n);
}

LaunchStatus SiluMul(const float* gate, std::int64_t ldg, const float* up, std::int64_t ldu,
                     std::int64_t n, std::int64_t d, float* y, std::int64_t ldy, Stream stream) {
  return Binary("silu_mul", SiluMulOp{}, gate, ldg, up, ldu, n, d, y, ldy, stream);
}

LaunchStatus AddRows(float* x, std::int64_t ldx, const float* y, std::int64_t ldy, std::int64_t n,
                     std::int64_t d, Stream stream) {
  return Binary("add_rows", AddOp{}, x, ldx, y, ldy, n, d, x, ldx, stream);
}

LaunchStatus CopyFloats(const float* src, std::int64_t n, float* dst, Stream stream) {
  constexpr unsigned kThreads = 256;
  if (n <= 0) return {};
  const LaunchStatus status =
      Launch("copy_floats", CopyKernel, ItemSizes(n / 4, kThreads), stream,
             reinterpret_cast<const float4*>(src), n / 4, reinterpret_cast<float4*>(dst));
  if (!status.ok() || n % 4 == 0) return status;
  return Launch("copy_floats_tail", CopyTailKernel, {dim3(1), 32, 0}, stream, src, n / 4 * 4, n,
                dst);
}

}  // namespace baton::cuda
