#include <cuda_runtime.h>

#include "kernels/codes_math.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device_utils.cuh"
#include "kernels/cuda/launch.cuh"

namespace baton::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kLanes = 8;  // threads of a block of 32 values, four values each

// Over the 8 lanes of a block of values.
__device__ __forceinline__ float BlockMax(float x) {
  for (int step = kLanes / 2; step > 0; step >>= 1) {
    x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, step));
  }
  return x;
}

__device__ __forceinline__ std::uint32_t PackBytes(int a, int b, int c, int d) {
  return (static_cast<std::uint32_t>(a) & 0xffu) | (static_cast<std::uint32_t>(b) & 0xffu) << 8 |
         (static_cast<std::uint32_t>(c) & 0xffu) << 16 |
         (static_cast<std::uint32_t>(d) & 0xffu) << 24;
}

// kVector: rows are aligned to 16 bytes.
template <CodeType T, bool kVector>
__global__ void QuantizeKernel(const float* x, std::int64_t ldx, std::int64_t n,
                               std::int64_t row_blocks, std::uint8_t* codes,
                               std::uint16_t* scales) {
  const std::int64_t blocks = n * row_blocks;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  // Whole warps stay together for the shuffles; lanes beyond the end repeat the last block.
  const std::int64_t warp_first = first - threadIdx.x % 32 / kLanes;
  for (std::int64_t ahead = 0; warp_first + ahead < blocks; ahead += step) {
    const bool live = first + ahead < blocks;
    const std::int64_t b = live ? first + ahead : blocks - 1;
    const float* src = x + b / row_blocks * ldx + b % row_blocks * kCodeBlock + lane * 4;
    float v[4];
    if constexpr (kVector) {
      const float4 f = *reinterpret_cast<const float4*>(src);
      v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
      for (int i = 0; i < 4; ++i) v[i] = src[i];
    }
    if constexpr (T == CodeType::kInt8) {
      const float d = Int8Scale(
          BlockMax(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])))));
      const float inverse = InverseScale(d);
      if (!live) continue;
      reinterpret_cast<std::uint32_t*>(codes)[b * kLanes + lane] =
          PackBytes(Int8Code(v[0], inverse), Int8Code(v[1], inverse), Int8Code(v[2], inverse),
                    Int8Code(v[3], inverse));
      if (lane == 0) scales[b] = FloatToHalfBits(d);
    } else {
      const float max = BlockMax(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])));
      const float min = -BlockMax(fmaxf(fmaxf(-v[0], -v[1]), fmaxf(-v[2], -v[3])));
      const float d = Int4Scale(min, max), inverse = InverseScale(d);
      std::uint32_t nibbles = PackBytes(Int4Code(v[0], min, inverse), Int4Code(v[1], min, inverse),
                                        Int4Code(v[2], min, inverse), Int4Code(v[3], min, inverse));
      // Values 16 and up, of the upper four lanes, go to the high halves of the lower lanes' bytes.
      nibbles |= __shfl_xor_sync(kFullWarp, nibbles, kLanes / 2) << 4;
      if (!live) continue;
      if (lane < kLanes / 2) {
        reinterpret_cast<std::uint32_t*>(codes)[b * (kLanes / 2) + lane] = nibbles;
      }
      if (lane == 0) {
        reinterpret_cast<std::uint32_t*>(scales)[b] =
            static_cast<std::uint32_t>(FloatToHalfBits(d)) |
            static_cast<std::uint32_t>(FloatToHalfBits(min)) << 16;
      }
    }
  }
}

// Values 4 * lane .. 4 * lane + 3 of block b.
template <CodeType T>
__device__ __forceinline__ float4 DecodeFour(const std::uint8_t* codes, const std::uint16_t* scales,
                                             std::int64_t b, int lane) {
  if constexpr (T == CodeType::kInt8) {
    const std::uint32_t w = reinterpret_cast<const std::uint32_t*>(codes)[b * kLanes + lane];
    const float d = HalfBitsToFloat(scales[b]);
    return make_float4(DecodeInt8(Int8Float(w, 0), d), DecodeInt8(Int8Float(w, 1), d),
                       DecodeInt8(Int8Float(w, 2), d), DecodeInt8(Int8Float(w, 3), d));
  } else {
    const std::uint32_t w =
        reinterpret_cast<const std::uint32_t*>(codes)[b * (kLanes / 2) + lane % (kLanes / 2)];
    const std::uint32_t dm = reinterpret_cast<const std::uint32_t*>(scales)[b];
    const float d = HalfBitsToFloat(static_cast<std::uint16_t>(dm));
    const float m = HalfBitsToFloat(static_cast<std::uint16_t>(dm >> 16));
    const int high = lane / (kLanes / 2);
    return make_float4(
        DecodeInt4(Int4Float(w, high), d, m), DecodeInt4(Int4Float(w, 2 + high), d, m),
        DecodeInt4(Int4Float(w, 4 + high), d, m), DecodeInt4(Int4Float(w, 6 + high), d, m));
  }
}

template <bool kVector>
__device__ __forceinline__ void StoreFour(float4 v, float* to) {
  if constexpr (kVector) {
    *reinterpret_cast<float4*>(to) = v;
  } else {
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
}

template <CodeType T, bool kVector>
__global__ void DequantizeKernel(const std::uint8_t* codes, const std::uint16_t* scales,
                                 std::int64_t n, std::int64_t row_blocks, float* y,
                                 std::int64_t ldy) {
  const std::int64_t items = n * row_blocks * kLanes;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < items;
       i += step) {
    const std::int64_t b = i / kLanes;
    const int lane = static_cast<int>(i % kLanes);
    StoreFour<kVector>(DecodeFour<T>(codes, scales, b, lane),
                       y + b / row_blocks * ldy + b % row_blocks * kCodeBlock + lane * 4);
  }
}

template <CodeType T, bool kVector>
__global__ void EmbeddingCodesKernel(const std::uint8_t* codes, const std::uint16_t* scales,
                                     std::int64_t vocab, std::int64_t row_blocks,
                                     const std::int32_t* ids, std::int64_t n, float* y,
                                     std::int64_t ldy) {
  for (std::int64_t r = blockIdx.x; r < n; r += gridDim.x) {
    const std::int64_t id = ids[r];
    const bool known = id >= 0 && id < vocab;
    const float nan = BitsFloat(0x7fc00000u);
    for (std::int64_t i = threadIdx.x; i < row_blocks * kLanes; i += blockDim.x) {
      float4 v = make_float4(nan, nan, nan, nan);
      if (known) {
        v = DecodeFour<T>(codes, scales, id * row_blocks + i / kLanes,
                          static_cast<int>(i % kLanes));
      }
      StoreFour<kVector>(v, y + r * ldy + i * 4);
    }
  }
}

// Sum of 16 codes of one feature times x, for each row: what a lane takes at a time.
//   int8: half a block, codes at[0..16)
//   int4: values 8 * half .. + 7 and 16 + 8 * half .. + 7 of a block
template <CodeType T, int kRows>
struct Piece {
  float x[kRows][16];
  float sum[kRows];  // of x, for int4's minimum

  __device__ void Load(const float* from, std::int64_t ldx, int rows, std::int64_t block,
                       int half) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float* at = from + (r < rows ? r : 0) * ldx + block * kCodeBlock;
      sum[r] = 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int offset =
            T == CodeType::kInt8 ? half * 16 + i * 4 : i / 2 * 16 + half * 8 + i % 2 * 4;
        const float4 f = *reinterpret_cast<const float4*>(at + offset);
        x[r][4 * i] = f.x, x[r][4 * i + 1] = f.y, x[r][4 * i + 2] = f.z, x[r][4 * i + 3] = f.w;
        if (T == CodeType::kInt4) sum[r] += (f.x + f.y) + (f.z + f.w);
      }
    }
  }

  __device__ void Add(const std::uint8_t* codes, const std::uint16_t* scales, std::int64_t block,
                      int half, float (&acc)[kRows]) const {
    float w[16];
    float d, m = 0.0f;
    if constexpr (T == CodeType::kInt8) {
      const uint4 c = reinterpret_cast<const uint4*>(codes)[block * 2 + half];
      d = HalfBitsToFloat(scales[block]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[i] = Int8Float(c.x, i);
        w[4 + i] = Int8Float(c.y, i);
        w[8 + i] = Int8Float(c.z, i);
        w[12 + i] = Int8Float(c.w, i);
      }
    } else {
      const uint2 c = reinterpret_cast<const uint2*>(codes)[block * 2 + half];
      const std::uint32_t dm = reinterpret_cast<const std::uint32_t*>(scales)[block];
      d = HalfBitsToFloat(static_cast<std::uint16_t>(dm));
      m = HalfBitsToFloat(static_cast<std::uint16_t>(dm >> 16));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[i] = Int4Float(c.x, 2 * i);
        w[4 + i] = Int4Float(c.y, 2 * i);
        w[8 + i] = Int4Float(c.x, 2 * i + 1);
        w[12 + i] = Int4Float(c.y, 2 * i + 1);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float dot = 0.0f;
#pragma unroll
      for (int i = 0; i < 16; ++i) dot = fmaf(w[i], x[r][i], dot);
      acc[r] = fmaf(d, dot, acc[r]);
      if (T == CodeType::kInt4) acc[r] = fmaf(m, sum[r], acc[r]);
    }
  }
};

// A warp computes kFeatures output features of all rows.
template <CodeType T, int kRows, int kFeatures>
__global__ void ProductKernel(const std::uint8_t* codes, const std::uint16_t* scales,
                              std::int64_t features, std::int64_t row_blocks, const float* x,
                              std::int64_t ldx, int n, float* y, std::int64_t ldy) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const std::int64_t first = warp * kFeatures;
  if (first >= features) return;  // the whole warp
  float acc[kFeatures][kRows] = {};
  for (std::int64_t i = lane; i < row_blocks * 2; i += 32) {
    Piece<T, kRows> piece;
    piece.Load(x, ldx, n, i / 2, static_cast<int>(i % 2));
#pragma unroll
    for (int f = 0; f < kFeatures; ++f) {
      // Features beyond the matrix repeat the last one and are not written.
      const std::int64_t feature = first + f < features ? first + f : features - 1;
      piece.Add(codes, scales, feature * row_blocks + i / 2, static_cast<int>(i % 2), acc[f]);
    }
  }
#pragma unroll
  for (int f = 0; f < kFeatures; ++f) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float total = WarpSum(acc[f][r]);
      if (lane == 0 && r < n && first + f < features) y[r * ldy + first + f] = total;
    }
  }
}

using ProductFn = void (*)(const std::uint8_t*, const std::uint16_t*, std::int64_t, std::int64_t,
                           const float*, std::int64_t, int, float*, std::int64_t);

template <CodeType T>
ProductFn ProductKernelFor(int rows) {
  return rows == 1   ? ProductKernel<T, 1, 4>
         : rows == 2 ? ProductKernel<T, 2, 4>
         : rows == 4 ? ProductKernel<T, 4, 2>
                     : ProductKernel<T, 8, 2>;
}

// A wrong address would end the process's use of the device.
bool Aligned(const std::uint8_t* codes, const std::uint16_t* scales) {
  return Aligned16(codes, 0) && reinterpret_cast<std::uintptr_t>(scales) % 4 == 0;
}

}  // namespace

LaunchStatus QuantizeRows(const float* x, std::int64_t ldx, std::int64_t n, std::int64_t d,
                          CodeType type, std::uint8_t* codes, std::uint16_t* scales,
                          Stream stream) {
  if (!Aligned(codes, scales)) return Refused("quantize_rows");
  const bool vector = Aligned16(x, ldx);
  auto* kernel = type == CodeType::kInt8 ? (vector ? QuantizeKernel<CodeType::kInt8, true>
                                                   : QuantizeKernel<CodeType::kInt8, false>)
                                         : (vector ? QuantizeKernel<CodeType::kInt4, true>
                                                   : QuantizeKernel<CodeType::kInt4, false>);
  return Launch("quantize_rows", kernel, ItemSizes(n * (d / kCodeBlock) * kLanes, kThreads), stream,
                x, ldx, n, d / kCodeBlock, codes, scales);
}

LaunchStatus DequantizeRows(const std::uint8_t* codes, const std::uint16_t* scales, std::int64_t n,
                            std::int64_t d, CodeType type, float* y, std::int64_t ldy,
                            Stream stream) {
  if (!Aligned(codes, scales)) return Refused("dequantize_rows");
  const bool vector = Aligned16(y, ldy);
  auto* kernel = type == CodeType::kInt8 ? (vector ? DequantizeKernel<CodeType::kInt8, true>
                                                   : DequantizeKernel<CodeType::kInt8, false>)
                                         : (vector ? DequantizeKernel<CodeType::kInt4, true>
                                                   : DequantizeKernel<CodeType::kInt4, false>);
  return Launch("dequantize_rows", kernel, ItemSizes(n * (d / kCodeBlock) * kLanes, kThreads),
                stream, codes, scales, n, d / kCodeBlock, y, ldy);
}

LaunchStatus EmbeddingCodes(const std::uint8_t* codes, const std::uint16_t* scales, CodeType type,
                            std::int64_t vocab, std::int64_t d, const std::int32_t* ids,
                            std::int64_t n, float* y, std::int64_t ldy, Stream stream) {
  if (!Aligned(codes, scales)) return Refused("embedding_codes");
  const bool vector = Aligned16(y, ldy);
  auto* kernel = type == CodeType::kInt8 ? (vector ? EmbeddingCodesKernel<CodeType::kInt8, true>
                                                   : EmbeddingCodesKernel<CodeType::kInt8, false>)
                                         : (vector ? EmbeddingCodesKernel<CodeType::kInt4, true>
                                                   : EmbeddingCodesKernel<CodeType::kInt4, false>);
  return Launch("embedding_codes", kernel, RowSizes(PlanRows(n, d / 4, kMaxBlocks)), stream, codes,
                scales, vocab, d / kCodeBlock, ids, n, y, ldy);
}

LaunchStatus MultiplyCodes(const std::uint8_t* codes, const std::uint16_t* scales, CodeType type,
                           std::int64_t rows, std::int64_t cols, const float* x, std::int64_t ldx,
                           std::int64_t n, float* y, std::int64_t ldy, Stream stream) {
  if (!Aligned(codes, scales) || !Aligned16(x, ldx) || n > kMaxCodeProductRows) {
    return Refused("multiply_codes");
  }
  const CodeProductPlan plan = PlanCodeProduct(n, rows);
  const ProductFn kernel = type == CodeType::kInt8 ? ProductKernelFor<CodeType::kInt8>(plan.rows)
                                                   : ProductKernelFor<CodeType::kInt4>(plan.rows);
  return Launch("multiply_codes", kernel,
                {dim3(static_cast<unsigned>(plan.blocks)), static_cast<unsigned>(plan.threads), 0},
                stream, codes, scales, rows, cols / kCodeBlock, x, ldx, static_cast<int>(n), y,
                ldy);
}

}  // namespace baton::cuda
