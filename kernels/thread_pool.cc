#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
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

// Where threads sleep until a word that others write has changed. Not std::atomic::wait: libstdc++
// calls sched_yield before it sleeps, and Linux charges a yield as a whole slice, so on a shared
// core a short wait costs several turns of the neighbour.
class SleepingPlace {
 public:
  // Spins for a moment, then sleeps, until ready() holds. ready() reads atomics that are written
  // with sequential consistency before Wake.
  template <typename Ready>
  void WaitUntil(const Ready& ready) {
    for (int i = 0; i < kSpins; ++i) {
      if (ready()) return;
      CpuRelax();
    }
    std::unique_lock<std::mutex> lock(mu_);
    // Either the writer sees a sleeper, or ready() sees what was written.
    sleepers_.fetch_add(1);
    while (!ready()) changed_.wait(lock);
    sleepers_.fetch_sub(1);
  }

  // After the write; costs a load when nobody sleeps.
  void Wake() {
    if (sleepers_.load() == 0) return;
    // Who has counted itself and looked too early holds mu_ until it really waits.
    { std::lock_guard<std::mutex> lock(mu_); }
    changed_.notify_all();
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::atomic<int> sleepers_{0};
};

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
    stop_.store(true);
    posted_.fetch_add(1);
    helpers_sleep_.Wake();
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
    posted_.fetch_add(1);
    helpers_sleep_.Wake();
    while (TakeAndRun()) {
    }
    caller_sleeps_.WaitUntil([&] { return done_.load() == pieces_; });
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
    if (done_.fetch_add(1) + 1 == pieces) caller_sleeps_.Wake();
    return true;
  }

  void HelperLoop() {
    for (;;) {
      // Read before looking for work or for the end: either, posted after this, changes posted_
      // and ends the wait.
      const std::uint32_t seen = posted_.load();
      if (stop_.load()) return;
      while (TakeAndRun()) {
      }
      helpers_sleep_.WaitUntil([&] { return posted_.load() != seen; });
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
  alignas(64) std::atomic<std::uint32_t> posted_{0};  // jobs, and the end
  std::atomic<bool> stop_{false};
  alignas(64) SleepingPlace helpers_sleep_;
  SleepingPlace caller_sleeps_;
};

}  // namespace

std::unique_ptr<Executor> MakeThreadPool(int threads) {
  if (threads <= 1) return std::make_unique<SerialExecutor>();
  return std::make_unique<ThreadPool>(threads);
}

}  // namespace baton
