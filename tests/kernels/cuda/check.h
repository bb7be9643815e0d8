// A small frame for comparing CUDA ops with the CPU's, without a test library: it must build on a
// bare GPU machine. The same checks run on a GPU and, against the emulator, on the CPU.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/dtype.h"

namespace baton::check {

#if defined(BATON_CUDA_EMULATED)
inline constexpr bool kEmulated = true;
#else
inline constexpr bool kEmulated = false;
#endif

// Fewer sizes, for the slow runs under sanitizers (--quick).
inline bool& Quick() {
  static bool quick = false;
  return quick;
}

inline void Require(int error, const char* what) {
  if (error == 0) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(1);
}

// An array in device memory; freed with the object.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n) : size_(n) {
    void* p = nullptr;
    Require(cudaMalloc(&p, (n > 0 ? n : 1) * sizeof(T)), "cudaMalloc");
    data_ = static_cast<T*>(p);
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) {
    Require(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
            "cudaMemcpy");
  }
  DeviceArray(DeviceArray&& o) noexcept : data_(o.data_), size_(o.size_) { o.data_ = nullptr; }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { static_cast<void>(cudaFree(data_)); }

  T* get() const { return data_; }
  std::vector<T> ToHost() const {
    std::vector<T> host(size_);
    Require(cudaDeviceSynchronize(), "a kernel");
    Require(cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
            "cudaMemcpy");
    return host;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

inline std::vector<float> Normal(std::size_t n, unsigned seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

// What an op's cases found.
class Report {
 public:
  // Names what follows, for messages: "attention bf16, window 5".
  void Case(const std::string& name) {
    case_ = name;
    ++cases_;
  }
  void Ok(const cuda::LaunchStatus& status) {
    if (!status.ok()) Fail(status.ToString());
  }
  // |got - want| <= tolerance; infinities must be equal, NaN only where NaN is wanted.
  void Near(const char* what, std::size_t index, float got, float want, double tolerance) {
    Hash(&got, sizeof got);
    if (got == want || (std::isnan(got) && std::isnan(want))) return;
    const double error = std::fabs(static_cast<double>(got) - want);
    if (error <= tolerance) {
      worst_ = std::fmax(worst_, error / tolerance);
      return;
    }
    Fail(std::string(what) + "[" + std::to_string(index) + "]: " + std::to_string(got) +
         ", CPU has " + std::to_string(want) + ", error " + std::to_string(error) + " of at most " +
         std::to_string(tolerance));
  }
  template <typename T>
  void Same(const char* what, const std::vector<T>& got, const std::vector<T>& want) {
    Hash(got.data(), got.size() * sizeof(T));
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (std::memcmp(&got[i], &want[i], sizeof(T)) == 0) continue;
      Fail(std::string(what) + "[" + std::to_string(i) + "] of " + std::to_string(want.size()) +
           ": " + std::to_string(got[i]) + ", CPU has " + std::to_string(want[i]));
      return;
    }
  }
  void Fail(const std::string& message) {
    if (failures_++ < 10) std::fprintf(stderr, "FAILED %s: %s\n", case_.c_str(), message.c_str());
  }

  int failures() const { return failures_; }
  int cases() const { return cases_; }
  // The largest error as a share of its tolerance.
  double worst() const { return worst_; }
  // Of every result, to compare two runs.
  std::uint64_t hash() const { return hash_; }

 private:
  void Hash(const void* p, std::size_t bytes) {
    const auto* b = static_cast<const unsigned char*>(p);
    for (std::size_t i = 0; i < bytes; ++i) hash_ = (hash_ ^ b[i]) * 1099511628211ull;
  }

  std::string case_;
  int cases_ = 0;
  int failures_ = 0;
  double worst_ = 0;
  std::uint64_t hash_ = 14695981039346656037ull;
};

struct Check {
  const char* op;     // the function of cuda_ops.h
  const char* dtype;  // of what the op reads or writes: "fp32", "int4", ...
  void (*run)(Report& report);
};

// Of check_attention.cc, check_elementwise.cc and check_codes.cc.
std::vector<Check> AttentionChecks();
std::vector<Check> ElementwiseChecks();
std::vector<Check> CodeChecks();

}  // namespace baton::check
