// The one place that launches kernels. Internal to the room.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/cuda/cuda_ops.h"

namespace baton::cuda {

// More blocks than any chip holds at once; what is beyond is taken in strides.
inline constexpr int kMaxBlocks = 8192;
// Dynamic shared memory that needs no permission.
inline constexpr std::size_t kSharedWithoutAsking = 48 * 1024;

struct LaunchSizes {
  dim3 grid;
  unsigned threads = 0;
  std::size_t shared_bytes = 0;
};

// Queues the kernel and says what came of it. An empty grid is no launch.
template <typename... P, typename... A>
LaunchStatus Launch(const char* name, void (*kernel)(P...), const LaunchSizes& sizes, Stream stream,
                    const A&... args) {
  if (sizes.grid.x == 0 || sizes.grid.y == 0 || sizes.grid.z == 0) return {};
  cudaError_t error = cudaSuccess;
  if (sizes.shared_bytes > kSharedWithoutAsking) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(sizes.shared_bytes));
  }
  if (error == cudaSuccess) {
#if defined(__CUDACC__)
    kernel<<<sizes.grid, sizes.threads, sizes.shared_bytes, stream>>>(args...);
#else
    emulator::Run(sizes.grid, sizes.threads, sizes.shared_bytes, [&] { kernel(args...); });
#endif
    error = cudaGetLastError();
  }
  LaunchStatus status;
  if (error == cudaSuccess) return status;
  status.error = static_cast<int>(error);
  status.kernel = name;
  status.grid[0] = sizes.grid.x;
  status.grid[1] = sizes.grid.y;
  status.grid[2] = sizes.grid.z;
  status.threads = sizes.threads;
  status.shared_bytes = sizes.shared_bytes;
  return status;
}

// The answer to arguments no kernel takes, in place of a launch.
inline LaunchStatus Refused(const char* name) {
  LaunchStatus status;
  status.error = static_cast<int>(cudaErrorInvalidValue);
  status.kernel = name;
  return status;
}

// Blocks of `threads` that give each of `items` one thread, up to the limit.
inline LaunchSizes ItemSizes(std::int64_t items, unsigned threads) {
  const std::int64_t blocks = (items + threads - 1) / threads;
  return {dim3(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks)), threads, 0};
}

inline LaunchSizes RowSizes(const RowLaunch& plan) {
  return {dim3(static_cast<unsigned>(plan.blocks)), static_cast<unsigned>(plan.threads), 0};
}

}  // namespace baton::cuda
