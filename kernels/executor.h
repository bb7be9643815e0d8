// How a kernel spreads work over threads. Kernels never create threads themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace baton {

// A non-owning reference to a callable `void(begin, end)`.
class RangeFn {
 public:
  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, RangeFn>>>
  RangeFn(F&& f)  // NOLINT(google-explicit-constructor): call sites pass lambdas
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* o, std::int64_t b, std::int64_t e) {
          (*static_cast<std::remove_reference_t<F>*>(o))(b, e);
        }) {}
  void operator()(std::int64_t begin, std::int64_t end) const { call_(object_, begin, end); }

 private:
  void* object_;
  void (*call_)(void*, std::int64_t, std::int64_t);
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual int threads() const = 0;
  // Calls fn over disjoint ranges that cover [0, n), each but the last a multiple of `grain`
  // long; returns when all are done. Results must not depend on the split.
  virtual void ParallelFor(std::int64_t n, std::int64_t grain, RangeFn fn) = 0;
};

// Runs everything on the calling thread.
class SerialExecutor final : public Executor {
 public:
  int threads() const override { return 1; }
  void ParallelFor(std::int64_t n, std::int64_t, RangeFn fn) override {
    if (n > 0) fn(0, n);
  }
};

// A pool of `threads` - 1 helpers beside the caller. Helpers spin for a moment, then sleep, so
// that neighbours on shared cores are not starved; work is taken in small pieces, so that a
// descheduled helper holds back only its piece. One caller at a time.
std::unique_ptr<Executor> MakeThreadPool(int threads);

}  // namespace baton
