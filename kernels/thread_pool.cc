#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/executor.h"

namespace baton {
namespace {

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// About 20 us of waiting before a thread sleeps (a pause takes 40 to 140 cycles).
constexpr int kSpins = 500;

// One word, ticket_, holds the job's number (high half) and how many of its pieces are still to
// be taken (low half). Whoever lowers the count by one owns a piece, and as long as a piece is
// owned the caller cannot return, so the job's fields stay valid. A helper that sleeps through a
// job is never waited for.
class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads) {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { HelperLoop(); });
  }

  ~ThreadPool() override {
    stop_.store(true, std::memory_order_relaxed);
    wake_.fetch_add(1, std::memory_order_release);
    wake_.notify_all();
    for (std::thread& t : helpers_) t.join();
  }

  int threads() const override { return static_cast<int>(helpers_.size()) + 1; }

  void ParallelFor(std::int64_t n, std::int64_t grain, RangeFn fn) override {
    if (n <= 0) return;
    grain = std::max<std::int64_t>(1, grain);
    // Six pieces a thread: small enough to even out, large enough to be worth taking.
    const std::int64_t share = n / (6 * static_cast<std::int64_t>(threads()));
    const std::int64_t piece = std::max<std::int64_t>(1, (share + grain - 1) / grain) * grain;
    const std::int64_t pieces = (n + piece - 1) / piece;
    if (pieces == 1) {
      fn(0, n);
      return;
    }
    fn_ = &fn;
    n_ = n;
    piece_ = piece;
    pieces_ = static_cast<std::uint32_t>(pieces);
    done_.store(0, std::memory_order_relaxed);
    ++job_;
    ticket_.store(static_cast<std::uint64_t>(job_) << 32 | pieces_, std::memory_order_release);
    wake_.fetch_add(1, std::memory_order_release);
    wake_.notify_all();
    while (TakeAndRun()) {
    }
    WaitDone();
  }

 private:
  // Runs one piece of the current job; false if none is left.
  bool TakeAndRun() {
    std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
    do {
      if (static_cast<std::uint32_t>(ticket) == 0) return false;
    } while (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                            std::memory_order_acquire));
    const std::uint32_t pieces = pieces_;
    const std::int64_t begin =
        static_cast<std::int64_t>(pieces - static_cast<std::uint32_t>(ticket)) * piece_;
    (*fn_)(begin, std::min(n_, begin + piece_));
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces) done_.notify_one();
    return true;
  }

  void WaitDone() {
    const std::uint32_t pieces = pieces_;
    for (int i = 0; i < kSpins; ++i) {
      if (done_.load(std::memory_order_acquire) == pieces) return;
      CpuRelax();
    }
    for (;;) {
      const std::uint32_t done = done_.load(std::memory_order_acquire);
      if (done == pieces) return;
      done_.wait(done, std::memory_order_acquire);
    }
  }

  void HelperLoop() {
    while (!stop_.load(std::memory_order_relaxed)) {
      // Read before looking for work: a job posted after this changes wake_ and ends the wait.
      const std::uint32_t seen = wake_.load(std::memory_order_acquire);
      while (TakeAndRun()) {
      }
      bool woken = false;
      for (int i = 0; i < kSpins && !woken; ++i) {
        woken = wake_.load(std::memory_order_acquire) != seen;
        if (!woken) CpuRelax();
      }
      if (!woken) wake_.wait(seen, std::memory_order_acquire);
    }
  }

  std::vector<std::thread> helpers_;  // constant after construction

  // The job: written by the caller while no piece is owned, read by owners of a piece.
  RangeFn* fn_ = nullptr;
  std::int64_t n_ = 0;
  std::int64_t piece_ = 0;
  std::uint32_t pieces_ = 0;
  std::uint32_t job_ = 0;

  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<std::uint32_t> done_{0};
  alignas(64) std::atomic<std::uint32_t> wake_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace

std::unique_ptr<Executor> MakeThreadPool(int threads) {
  if (threads <= 1) return std::make_unique<SerialExecutor>();
  return std::make_unique<ThreadPool>(threads);
}

}  // namespace baton
