#include <cuda_runtime.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device_utils.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/elementwise_math.h"

namespace baton::cuda {
namespace {

constexpr unsigned kThreads = 64;

// One block per row and head.
template <DType D>
__global__ void WriteKernel(KvPageLayout layout, KvRowsArgs a, const std::int32_t* positions,
                            KeyRotation rotation) {
  const std::int64_t r = blockIdx.x;
  const int h = static_cast<int>(blockIdx.y);
  const int hd = layout.head_dim;
  const int row = a.rows[r];
  std::byte* page = a.pages[r * a.kv_heads + h];
  std::byte* pk = page + layout.k_offset();
  std::byte* pv = page + layout.v_offset();
  if (threadIdx.x == 0) PagePositions(page)[row] = positions[r];
  const float* k = a.k + r * a.ldk + static_cast<std::int64_t>(h) * hd;
  const float* v = a.v + r * a.ldv + static_cast<std::int64_t>(h) * hd;
  const int step = static_cast<int>(blockDim.x);
  for (int d = static_cast<int>(threadIdx.x); d < hd; d += step) {
    StoreElement<D>(pv, row * hd + d, v[d]);
  }
  if (rotation.inv_freq == nullptr) {
    for (int d = static_cast<int>(threadIdx.x); d < hd; d += step) {
      StoreElement<D>(pk, d * kPageRows + row, k[d]);
    }
    return;
  }
  const int half = hd / 2;
  for (int d = static_cast<int>(threadIdx.x); d < half; d += step) {
    const SinCos sc = PreciseSinCos(static_cast<float>(positions[r]) * rotation.inv_freq[d]);
    const RopePair<float> p = RotatePair(k[d], k[d + half], sc.cos * rotation.attention_scaling,
                                         sc.sin * rotation.attention_scaling);
    StoreElement<D>(pk, d * kPageRows + row, p.lo);
    StoreElement<D>(pk, (d + half) * kPageRows + row, p.hi);
  }
}

template <DType D>
__global__ void ReadKernel(KvPageLayout layout, KvRowsArgs a) {
  const std::int64_t r = blockIdx.x;
  const int h = static_cast<int>(blockIdx.y);
  const int hd = layout.head_dim;
  const int row = a.rows[r];
  const std::byte* page = a.pages[r * a.kv_heads + h];
  float* k = a.k + r * a.ldk + static_cast<std::int64_t>(h) * hd;
  float* v = a.v + r * a.ldv + static_cast<std::int64_t>(h) * hd;
  for (int d = static_cast<int>(threadIdx.x); d < hd; d += static_cast<int>(blockDim.x)) {
    k[d] = LoadElement<D>(page + layout.k_offset(), d * kPageRows + row);
    v[d] = LoadElement<D>(page + layout.v_offset(), row * hd + d);
  }
}

// One block per page. E is an element's storage.
template <typename E>
__device__ void CopyRows(int head_dim, const E* payload, E* page, int begin, int end) {
  const int rows = end - begin;
  const int v_offset = kPageRows * head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < rows * head_dim;
       i += static_cast<int>(blockDim.x)) {
    const int at = i / rows * kPageRows + begin + i % rows;
    page[at] = payload[at];
    page[v_offset + begin * head_dim + i] = payload[v_offset + begin * head_dim + i];
  }
}

__global__ void CopyKernel(KvPageLayout layout, const std::byte* const* payloads,
                           std::byte* const* pages, const std::int32_t* row_begin,
                           const std::int32_t* row_end, std::int64_t n) {
  for (std::int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    const std::byte* src = payloads[i];
    std::byte* dst = pages[i] + layout.k_offset();
    const int begin = row_begin[i], end = row_end[i];
    if (begin >= end) continue;
    // K and V lie side by side in both: a whole page is one run of bytes.
    if (begin == 0 && end == kPageRows && reinterpret_cast<std::uintptr_t>(src) % 16 == 0) {
      const int words = static_cast<int>(layout.payload_bytes() / 16);
      for (int w = static_cast<int>(threadIdx.x); w < words; w += static_cast<int>(blockDim.x)) {
        reinterpret_cast<uint4*>(dst)[w] = reinterpret_cast<const uint4*>(src)[w];
      }
    } else if (layout.dtype == DType::kF32) {
      CopyRows(layout.head_dim, reinterpret_cast<const std::uint32_t*>(src),
               reinterpret_cast<std::uint32_t*>(dst), begin, end);
    } else {
      CopyRows(layout.head_dim, reinterpret_cast<const std::uint16_t*>(src),
               reinterpret_cast<std::uint16_t*>(dst), begin, end);
    }
  }
}

LaunchSizes PerRowAndHead(const KvRowsArgs& args) {
  return {dim3(static_cast<unsigned>(args.n), static_cast<unsigned>(args.kv_heads)), kThreads, 0};
}

}  // namespace

LaunchStatus WriteKvRows(const KvPageLayout& layout, const KvRowsArgs& args,
                         const std::int32_t* positions, const KeyRotation& rotation,
                         Stream stream) {
  auto* kernel = layout.dtype == DType::kF32    ? WriteKernel<DType::kF32>
                 : layout.dtype == DType::kBF16 ? WriteKernel<DType::kBF16>
                                                : WriteKernel<DType::kF16>;
  return Launch("write_kv_rows", kernel, PerRowAndHead(args), stream, layout, args, positions,
                rotation);
}

LaunchStatus ReadKvRows(const KvPageLayout& layout, const KvRowsArgs& args, Stream stream) {
  auto* kernel = layout.dtype == DType::kF32    ? ReadKernel<DType::kF32>
                 : layout.dtype == DType::kBF16 ? ReadKernel<DType::kBF16>
                                                : ReadKernel<DType::kF16>;
  return Launch("read_kv_rows", kernel, PerRowAndHead(args), stream, layout, args);
}

LaunchStatus CopyKvRows(const KvPageLayout& layout, const std::byte* const* payloads,
                        std::byte* const* pages, const std::int32_t* row_begin,
                        const std::int32_t* row_end, std::int64_t n, Stream stream) {
  const LaunchSizes sizes =
      RowSizes(PlanRows(n, static_cast<std::int64_t>(layout.payload_bytes() / 16), kMaxBlocks));
  return Launch("copy_kv_rows", CopyKernel, sizes, stream, layout, payloads, pages, row_begin,
                row_end, n);
}

}  // namespace baton::cuda
