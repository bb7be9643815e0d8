// Stands in for CUDA's header of this name, so that the .cu files compile as plain C++ and their
// kernels run on the CPU: every thread of a block is a fiber, blocks run one after the other.
//
// What that finds: wrong indices (with ASan: shared memory and buffers are exact allocations),
// reads of shared memory nobody wrote (it starts as NaN), barriers that not all threads of a warp
// or block reach (the run aborts), and missing barriers (Order::kReversed runs the threads between
// two barriers in the opposite order; the results must be the same bits). What it cannot find:
// whatever the hardware orders differently within a warp between two of its barriers, and speed.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
// Blocks run one at a time, so one copy serves all.
#define __shared__ static

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3() = default;
  constexpr explicit dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Of the thread that runs now.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

struct CUstream_st;
using cudaStream_t = CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };

cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMalloc(void** p, std::size_t bytes);
cudaError_t cudaFree(void* p);
cudaError_t cudaMemcpy(void* dst, const void* src, std::size_t bytes, cudaMemcpyKind kind);
template <typename F>
cudaError_t cudaFuncSetAttribute(F*, cudaFuncAttribute, int bytes) {
  // The smallest limit of the architectures that are compiled for (sm_80).
  return bytes <= 163 * 1024 ? cudaSuccess : cudaErrorInvalidValue;
}

void __syncthreads();
int __syncthreads_or(int x);
void __syncwarp();

namespace emulator {

enum class Order { kForward, kReversed };
void SetOrder(Order order);

// Runs `body` for every thread of the grid. Like a launch, it leaves wrong sizes to
// cudaGetLastError.
void Run(dim3 grid, unsigned threads, std::size_t shared_bytes, const std::function<void()>& body);
float* DynamicShared();
// What lane `lane ^ mask` gave.
std::uint32_t ShuffleXor(std::uint32_t bits, int mask);

}  // namespace emulator

template <typename T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  static_assert(sizeof(T) == 4);
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = emulator::ShuffleXor(bits, mask);
  std::memcpy(&x, &bits, 4);
  return x;
}
