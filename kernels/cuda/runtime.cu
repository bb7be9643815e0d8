#include <cuda_runtime.h>

#include "kernels/cuda/cuda_ops.h"

namespace baton::cuda {

std::string LaunchStatus::ToString() const {
  if (ok()) return "ok";
  return std::string(kernel) + "<<<(" + std::to_string(grid[0]) + ", " + std::to_string(grid[1]) +
         ", " + std::to_string(grid[2]) + "), " + std::to_string(threads) + ", " +
         std::to_string(shared_bytes) +
         " bytes>>>: " + cudaGetErrorString(static_cast<cudaError_t>(error));
}

int DeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  // The error must not be taken for that of a later launch.
  static_cast<void>(cudaGetLastError());
  return 0;
}

int SmCount() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return count;
}

}  // namespace baton::cuda
