#include "common/base/signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"

namespace baton {
namespace {

constexpr int kWatched[] = {SIGINT, SIGTERM, SIGHUP};

sigset_t WatchedSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : kWatched) sigaddset(&set, signal);
  return set;
}

absl::Status SystemError(const char* call) {
  return absl::InternalError(absl::StrCat(call, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShutdownSignal>> ShutdownSignal::Install() {
  const sigset_t set = WatchedSignals();
  sigset_t before;
  if (pthread_sigmask(SIG_BLOCK, &set, &before) != 0) return SystemError("pthread_sigmask");
  sigset_t blocked;
  sigemptyset(&blocked);
  for (int signal : kWatched) {
    if (sigismember(&before, signal) == 0) sigaddset(&blocked, signal);
  }
  signal(SIGPIPE, SIG_IGN);
  const int signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signal_fd < 0) return SystemError("signalfd");
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) {
    absl::Status status = SystemError("eventfd");
    close(signal_fd);
    return status;
  }
  return std::unique_ptr<ShutdownSignal>(new ShutdownSignal(blocked, signal_fd, wake_fd));
}

ShutdownSignal::ShutdownSignal(const sigset_t& blocked, int signal_fd, int wake_fd)
    : blocked_(blocked), signal_fd_(signal_fd), wake_fd_(wake_fd), thread_([this] { Run(); }) {}

ShutdownSignal::~ShutdownSignal() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
  thread_.join();
  close(signal_fd_);
  close(wake_fd_);
  pthread_sigmask(SIG_UNBLOCK, &blocked_, nullptr);
}

int ShutdownSignal::Wait() {
  MutexLock lock(mu_);
  changed_.Wait(mu_, [this]() REQUIRES(mu_) { return asked_; });
  return signal_;
}

bool ShutdownSignal::WaitFor(std::chrono::nanoseconds timeout) {
  MutexLock lock(mu_);
  return changed_.WaitFor(mu_, timeout, [this]() REQUIRES(mu_) { return asked_; });
}

void ShutdownSignal::Request() { Ask(0); }

void ShutdownSignal::OnHup(std::function<void()> callback) {
  MutexLock lock(mu_);
  on_hup_ = std::move(callback);
  if (std::this_thread::get_id() == thread_.get_id()) return;
  changed_.Wait(mu_, [this]() REQUIRES(mu_) { return !in_hup_; });
}

void ShutdownSignal::Hup() {
  std::function<void()> callback;
  {
    MutexLock lock(mu_);
    callback = on_hup_;
    in_hup_ = true;
  }
  if (callback) callback();
  callback = nullptr;
  {
    MutexLock lock(mu_);
    in_hup_ = false;
  }
  changed_.NotifyAll();
}

void ShutdownSignal::Ask(int signal) {
  {
    MutexLock lock(mu_);
    if (asked_) return;
    asked_ = true;
    signal_ = signal;
  }
  changed_.NotifyAll();
  source_.Cancel(absl::CancelledError("shutting down"));
}

void ShutdownSignal::Run() {
  bool interrupted = false;
  while (true) {
    pollfd fds[2] = {{signal_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;  // EINTR
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGHUP) {
      Hup();
      continue;
    }
    if (interrupted) {
      BATON_LOG_WARN("second {} while shutting down: leaving now", strsignal(signal));
      _exit(128 + signal);
    }
    interrupted = true;
    BATON_LOG_INFO("{}: shutting down", strsignal(signal));
    Ask(signal);
  }
}

}  // namespace baton
