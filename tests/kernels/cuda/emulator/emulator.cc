#include <cuda_runtime.h>
#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <memory>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr int kWarp = 32;

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

// A fiber starts through ucontext and is switched with setjmp, which makes no system call. ASan
// follows the former only.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kJump = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kJump = false;
#else
constexpr bool kJump = true;
#endif
#else
constexpr bool kJump = true;
#endif

struct Fiber {
  ucontext_t context;
  jmp_buf jump;
  bool started = false;
  std::unique_ptr<char[]> stack;
  State state = State::kReady;
};

struct Machine {
  std::vector<Fiber> fibers;
  unsigned threads = 0;
  unsigned current = 0;
  ucontext_t scheduler;
  jmp_buf scheduler_jump;
  const std::function<void()>* body = nullptr;
  std::unique_ptr<float[]> shared;
  int any = 0;       // what __syncthreads_or collects
  int any_last = 0;  // what it returned
  std::vector<std::uint32_t> lanes;
  Order order = Order::kForward;
  cudaError_t error = cudaSuccess;
};
Machine g;

void ToScheduler(Fiber* f) {
  if (kJump) {
    if (_setjmp(f->jump) == 0) _longjmp(g.scheduler_jump, 1);
  } else {
    swapcontext(&f->context, &g.scheduler);
  }
}

void Entry() {
  (*g.body)();
  Fiber& f = g.fibers[g.current];
  f.state = State::kDone;
  ToScheduler(&f);
}

void Wait(State state) {
  Fiber& f = g.fibers[g.current];
  f.state = state;
  ToScheduler(&f);
}

void Resume(unsigned i) {
  Fiber& f = g.fibers[i];
  g.current = i;
  threadIdx = {i, 0, 0};
  if (kJump) {
    if (_setjmp(g.scheduler_jump) != 0) return;
    if (f.started) _longjmp(f.jump, 1);
    f.started = true;
    setcontext(&f.context);
  } else {
    swapcontext(&g.scheduler, &f.context);
  }
}

// Lets go threads [begin, end) if all that have not ended wait in `state`.
bool Release(unsigned begin, unsigned end, State state) {
  bool waiting = false;
  for (unsigned i = begin; i < end; ++i) {
    if (g.fibers[i].state == State::kDone) continue;
    if (g.fibers[i].state != state) return false;
    waiting = true;
  }
  for (unsigned i = begin; waiting && i < end; ++i) {
    if (g.fibers[i].state == state) g.fibers[i].state = State::kReady;
  }
  return waiting;
}

void RunBlock() {
  for (unsigned i = 0; i < g.threads; ++i) {
    Fiber& f = g.fibers[i];
    if (f.stack == nullptr) f.stack = std::make_unique<char[]>(kStackBytes);
    f.state = State::kReady;
    f.started = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = kStackBytes;
    f.context.uc_link = nullptr;  // a fiber that has ended is never resumed
    makecontext(&f.context, Entry, 0);
  }
  for (;;) {
    bool ran = false;
    for (unsigned n = 0; n < g.threads; ++n) {
      const unsigned i = g.order == Order::kForward ? n : g.threads - 1 - n;
      if (g.fibers[i].state != State::kReady) continue;
      Resume(i);
      ran = true;
    }
    bool released = false;
    for (unsigned w = 0; w < g.threads; w += kWarp) {
      released |= Release(w, w + kWarp, State::kAtWarpBarrier);
    }
    if (Release(0, g.threads, State::kAtBlockBarrier)) {
      released = true;
      g.any_last = g.any;
      g.any = 0;
    }
    if (released || ran) continue;
    for (unsigned i = 0; i < g.threads; ++i) {
      if (g.fibers[i].state == State::kDone) continue;
      std::fprintf(stderr, "emulator: thread %u of block (%u, %u, %u) waits for ever\n", i,
                   blockIdx.x, blockIdx.y, blockIdx.z);
      std::abort();
    }
    return;
  }
}

}  // namespace

void SetOrder(Order order) { g.order = order; }

void Run(dim3 grid, unsigned threads, std::size_t shared_bytes, const std::function<void()>& body) {
  if (threads == 0 || threads > 1024 || threads % kWarp != 0 || grid.y > 65535 || grid.z > 65535) {
    g.error = cudaErrorInvalidConfiguration;
    return;
  }
  g.threads = threads;
  g.body = &body;
  if (g.fibers.size() < threads) g.fibers.resize(threads);
  g.lanes.assign(threads, 0);
  gridDim = grid;
  blockDim = dim3(threads);
  const std::size_t floats = shared_bytes / sizeof(float);
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
        g.shared = std::make_unique<float[]>(floats);
        std::memset(g.shared.get(), 0xff, floats * sizeof(float));
        RunBlock();
      }
    }
  }
  g.shared.reset();
}

float* DynamicShared() { return g.shared.get(); }

std::uint32_t ShuffleXor(std::uint32_t bits, int mask) {
  const unsigned me = g.current;
  g.lanes[me] = bits;
  Wait(State::kAtWarpBarrier);
  const std::uint32_t theirs = g.lanes[me ^ static_cast<unsigned>(mask)];
  Wait(State::kAtWarpBarrier);
  return theirs;
}

}  // namespace emulator

void __syncthreads() { emulator::Wait(emulator::State::kAtBlockBarrier); }
int __syncthreads_or(int x) {
  emulator::g.any |= x;
  __syncthreads();
  return emulator::g.any_last;
}
void __syncwarp() { emulator::Wait(emulator::State::kAtWarpBarrier); }

cudaError_t cudaGetLastError() {
  const cudaError_t error = emulator::g.error;
  emulator::g.error = cudaSuccess;
  return error;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess                     ? "no error"
         : error == cudaErrorInvalidConfiguration ? "invalid configuration argument"
                                                  : "invalid argument";
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 4;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  // Not rounded up: what reads beyond the end reads foreign memory, which ASan sees.
  return posix_memalign(p, 256, bytes) == 0 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaFree(void* p) {
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* dst, const void* src, std::size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(dst, src, bytes);
  return cudaSuccess;
}
