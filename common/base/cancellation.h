// Cancellation with a reason, shared between threads.
//
//   CancellationSource source;
//   Work(source.token());                        // elsewhere: if (token.cancelled()) return ...
//   source.Cancel(absl::DeadlineExceededError("deadline passed"));
//
// Thread rules: everything is thread-safe. Callbacks run once, on the thread that calls Cancel (or
// at once, on the registering thread, if already cancelled), without any lock held. Destroying a
// Registration waits for its callback if that runs on another thread at that moment, so what the
// callback captures may be freed right after.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"

namespace baton {

namespace cancellation_internal {
struct State;
}

class CancellationToken {
 public:
  // Keeps a callback registered; default-constructed: holds nothing.
  class [[nodiscard]] Registration {
   public:
    Registration() = default;
    Registration(Registration&& other) noexcept;
    Registration& operator=(Registration&& other) noexcept;
    ~Registration();
    // Unregisters now; afterwards the callback neither runs nor is running elsewhere.
    void Reset();

   private:
    friend class CancellationToken;
    Registration(std::shared_ptr<cancellation_internal::State> state, uint64_t id);
    std::shared_ptr<cancellation_internal::State> state_;
    uint64_t id_ = 0;
  };

  // A token that is never cancelled.
  CancellationToken() = default;

  bool cancelled() const;
  // Ok while not cancelled, then the reason.
  absl::Status status() const;
  // True as soon as cancelled, false when `timeout` passed first.
  bool WaitFor(std::chrono::nanoseconds timeout) const;
  Registration OnCancel(std::function<void(const absl::Status& reason)> callback) const;

 private:
  friend class CancellationSource;
  explicit CancellationToken(std::shared_ptr<cancellation_internal::State> state)
      : state_(std::move(state)) {}
  std::shared_ptr<cancellation_internal::State> state_;
};

class CancellationSource {
 public:
  CancellationSource();
  // Also cancelled, with the same reason, when `parent` is.
  explicit CancellationSource(const CancellationToken& parent);
  ~CancellationSource();
  CancellationSource(const CancellationSource&) = delete;
  CancellationSource& operator=(const CancellationSource&) = delete;

  // The first call wins and returns true; later ones change nothing. An ok `reason` becomes
  // CANCELLED. Callbacks have returned when this does.
  bool Cancel(absl::Status reason = absl::CancelledError("cancelled"));
  bool cancelled() const { return token().cancelled(); }
  CancellationToken token() const { return CancellationToken(state_); }

 private:
  std::shared_ptr<cancellation_internal::State> state_;
  CancellationToken::Registration parent_;
};

}  // namespace baton
