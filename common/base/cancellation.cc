#include "common/base/cancellation.h"

#include <atomic>
#include <map>
#include <thread>

#include "common/base/mutex.h"

namespace baton {
namespace cancellation_internal {

using Callback = std::function<void(const absl::Status&)>;

struct State {
  std::atomic<bool> cancelled{false};  // set last, so that a reader who sees it also sees `reason`
  Mutex mu;
  CondVar changed;
  bool asked GUARDED_BY(mu) = false;
  absl::Status reason GUARDED_BY(mu);
  uint64_t next_id GUARDED_BY(mu) = 1;
  std::map<uint64_t, Callback> callbacks GUARDED_BY(mu);
  uint64_t running GUARDED_BY(mu) = 0;  // id of the callback that runs now; 0: none
  std::thread::id runner GUARDED_BY(mu);
};

}  // namespace cancellation_internal

using cancellation_internal::Callback;
using cancellation_internal::State;

CancellationToken::Registration::Registration(std::shared_ptr<State> state, uint64_t id)
    : state_(std::move(state)), id_(id) {}

CancellationToken::Registration::Registration(Registration&& other) noexcept
    : state_(std::move(other.state_)), id_(std::exchange(other.id_, 0)) {}

CancellationToken::Registration& CancellationToken::Registration::operator=(
    Registration&& other) noexcept {
  if (this != &other) {
    Reset();
    state_ = std::move(other.state_);
    id_ = std::exchange(other.id_, 0);
  }
  return *this;
}

CancellationToken::Registration::~Registration() { Reset(); }

void CancellationToken::Registration::Reset() {
  const std::shared_ptr<State> state = std::move(state_);
  const uint64_t id = std::exchange(id_, 0);
  if (state == nullptr || id == 0) return;
  Callback dropped;  // what it captured is freed without the lock
  MutexLock lock(state->mu);
  if (auto it = state->callbacks.find(id); it != state->callbacks.end()) {
    dropped = std::move(it->second);
    state->callbacks.erase(it);
    return;
  }
  if (state->runner == std::this_thread::get_id()) return;  // from inside the callback itself
  state->changed.Wait(state->mu, [&]() REQUIRES(state->mu) { return state->running != id; });
}

bool CancellationToken::cancelled() const {
  return state_ != nullptr && state_->cancelled.load(std::memory_order_acquire);
}

absl::Status CancellationToken::status() const {
  if (!cancelled()) return absl::OkStatus();
  MutexLock lock(state_->mu);
  return state_->reason;
}

bool CancellationToken::WaitFor(std::chrono::nanoseconds timeout) const {
  if (state_ == nullptr) {
    std::this_thread::sleep_for(timeout);
    return false;
  }
  MutexLock lock(state_->mu);
  return state_->changed.WaitFor(state_->mu, timeout,
                                 [this]() REQUIRES(state_->mu) { return state_->asked; });
}

CancellationToken::Registration CancellationToken::OnCancel(Callback callback) const {
  if (state_ == nullptr || callback == nullptr) return Registration();
  absl::Status reason;
  {
    MutexLock lock(state_->mu);
    if (!state_->asked) {
      const uint64_t id = state_->next_id++;
      state_->callbacks.emplace(id, std::move(callback));
      return Registration(state_, id);
    }
    reason = state_->reason;
  }
  callback(reason);
  return Registration();
}

CancellationSource::CancellationSource() : state_(std::make_shared<State>()) {}

CancellationSource::CancellationSource(const CancellationToken& parent) : CancellationSource() {
  parent_ = parent.OnCancel([this](const absl::Status& reason) { Cancel(reason); });
}

CancellationSource::~CancellationSource() { parent_.Reset(); }

bool CancellationSource::Cancel(absl::Status reason) {
  if (reason.ok()) reason = absl::CancelledError("cancelled");
  const std::shared_ptr<State> state = state_;  // a callback may destroy this source
  {
    MutexLock lock(state->mu);
    if (state->asked) return false;
    state->asked = true;
    state->reason = reason;
    state->runner = std::this_thread::get_id();
    state->cancelled.store(true, std::memory_order_release);
  }
  state->changed.NotifyAll();
  while (true) {
    Callback callback;
    {
      MutexLock lock(state->mu);
      if (state->callbacks.empty()) {
        state->runner = std::thread::id();
        return true;
      }
      const auto first = state->callbacks.begin();
      state->running = first->first;
      callback = std::move(first->second);
      state->callbacks.erase(first);
    }
    callback(reason);
    callback = nullptr;
    {
      MutexLock lock(state->mu);
      state->running = 0;
    }
    state->changed.NotifyAll();
  }
}

}  // namespace baton
