// Marks per-element arithmetic that CPU and CUDA kernels share. C++17.
//
// Always inlined: the same function is compiled into translation units of several instruction
// sets, and the linker must never pick one unit's copy for another.
#pragma once

#if defined(__CUDACC__)
#define BATON_HD __host__ __device__ __forceinline__
#else
#define BATON_HD inline __attribute__((always_inline))
#endif
