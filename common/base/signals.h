// Orderly shutdown on SIGINT/SIGTERM, reload on SIGHUP.
//
//   int main() {
//     auto shutdown = ShutdownSignal::Install();   // before any other thread starts
//     (*shutdown)->OnHup([&] { Reload(); });
//     ... start serving ...
//     (*shutdown)->Wait();
//     ... drain ...
//   }
//
// The signals are blocked in the calling thread and all threads it starts later; one thread of this
// class reads them from a signalfd. A second SIGINT or SIGTERM ends the process at once with exit
// code 128 + signal, so that an impatient Ctrl-C works while draining. SIGPIPE is ignored.
#pragma once

#include <signal.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/cancellation.h"
#include "common/base/mutex.h"

namespace baton {

class ShutdownSignal {
 public:
  // One at a time per process. INTERNAL when the system refuses.
  static absl::StatusOr<std::unique_ptr<ShutdownSignal>> Install();
  // Unblocks in the calling thread the signals that Install() blocked.
  ~ShutdownSignal();
  ShutdownSignal(const ShutdownSignal&) = delete;
  ShutdownSignal& operator=(const ShutdownSignal&) = delete;

  // Blocks until the first SIGINT, SIGTERM or Request(). Returns the signal number, 0 for
  // Request().
  int Wait() EXCLUDES(mu_);
  // True when shutdown was asked for within `timeout`.
  bool WaitFor(std::chrono::nanoseconds timeout) EXCLUDES(mu_);
  // Asks for shutdown from inside the process; idempotent, any thread.
  void Request() EXCLUDES(mu_);
  // Cancelled when shutdown is asked for.
  CancellationToken token() const { return source_.token(); }
  // Runs on the signal thread at each SIGHUP; replaces the earlier one. Empty: SIGHUP is ignored.
  // Waits for a run of the earlier one (unless called by it), so what that uses may be freed then.
  void OnHup(std::function<void()> callback) EXCLUDES(mu_);

 private:
  ShutdownSignal(const sigset_t& blocked, int signal_fd, int wake_fd);
  void Run();
  void Hup() EXCLUDES(mu_);
  void Ask(int signal) EXCLUDES(mu_);

  const sigset_t blocked_;  // by Install()
  const int signal_fd_;
  const int wake_fd_;
  CancellationSource source_;
  Mutex mu_;
  CondVar changed_;
  bool asked_ GUARDED_BY(mu_) = false;
  int signal_ GUARDED_BY(mu_) = 0;
  std::function<void()> on_hup_ GUARDED_BY(mu_);
  bool in_hup_ GUARDED_BY(mu_) = false;  // a copy of on_hup_ runs
  std::thread thread_;
};

}  // namespace baton
