// Server side of a streaming call that any thread may write to.
//
//   grpc::ServerWriteReactor<Event>* Generate(grpc::CallbackServerContext*, const Request*) {
//     auto writer = StreamWriter<Event>::Create({.max_queued = 256});
//     writer->SetOnCancel([session] { session->Abort(); });
//     session->Start(writer);           // Push(event)… Finish(status), from the engine's thread
//     return writer->reactor();
//   }
//
// Lifetime: gRPC's share is held from Create until the call is over, so a writer that was created
// must be returned to gRPC. Everybody else holds shared_ptrs for as long as they like; pushes after
// the end are refused, never a crash.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/rpc/status.h"

namespace baton {

struct StreamWriterOptions {
  size_t max_queued = 1024;  // messages waiting behind the one being written
};

template <typename T>
class StreamWriter final : private grpc::ServerWriteReactor<T> {
 public:
  static std::shared_ptr<StreamWriter> Create(StreamWriterOptions options = {}) {
    std::shared_ptr<StreamWriter> writer(new StreamWriter(options));
    writer->self_ = writer;
    return writer;
  }

  // To be returned from the service method, once.
  grpc::ServerWriteReactor<T>* reactor() { return this; }

  // `on_cancel` runs once, on a gRPC thread, if the client goes away or its deadline passes before
  // Finish was called; at once, on this thread, if that has happened already. It is dropped
  // afterwards, or when the call is over. Call at most once.
  void SetOnCancel(std::function<void()> on_cancel) {
    {
      MutexLock lock(mu_);
      if (state_ == State::kOpen) {
        on_cancel_ = std::move(on_cancel);
        return;
      }
      if (state_ != State::kCancelled) return;
    }
    on_cancel();
  }

  // Queues a message. RESOURCE_EXHAUSTED: the queue is full (a slow client), nothing is queued.
  // CANCELLED: the client is gone. FAILED_PRECONDITION: after Finish.
  absl::Status Push(T message) {
    {
      MutexLock lock(mu_);
      if (state_ == State::kCancelled) return absl::CancelledError("the client went away");
      if (state_ == State::kFinishing) {
        return absl::FailedPreconditionError("the stream was finished");
      }
      if (writing_ && queue_.size() >= options_.max_queued) {
        return absl::ResourceExhaustedError("the client reads too slowly");
      }
      queue_.push_back(std::move(message));
    }
    Pump();
    return absl::OkStatus();
  }

  // Ends the call after what is queued. Only the first call counts; none matters after cancel.
  void Finish(const absl::Status& status) {
    std::function<void()> dropped;  // destroyed outside the lock: it may own this writer's users
    {
      MutexLock lock(mu_);
      if (state_ != State::kOpen) return;
      state_ = State::kFinishing;
      final_ = ToGrpcStatus(status);
      dropped = std::exchange(on_cancel_, nullptr);
    }
    Pump();
  }

  // True when nobody will read what is pushed.
  bool cancelled() const {
    MutexLock lock(mu_);
    return state_ == State::kCancelled;
  }

  // Messages waiting, not counting the one being written.
  size_t queued() const {
    MutexLock lock(mu_);
    return queue_.size();
  }

 private:
  enum class State { kOpen, kFinishing, kCancelled };

  explicit StreamWriter(StreamWriterOptions options) : options_(options) {}

  // Starts the next operation if none runs. gRPC may call OnWriteDone before StartWrite returns,
  // so nothing here holds the lock while calling gRPC.
  void Pump() {
    enum { kNothing, kWrite, kFinish } next = kNothing;
    grpc::Status final;
    {
      MutexLock lock(mu_);
      if (writing_ || finished_) return;
      if (state_ != State::kCancelled && !queue_.empty()) {
        current_ = std::move(queue_.front());
        queue_.pop_front();
        writing_ = true;
        next = kWrite;
      } else if (state_ != State::kOpen) {
        finished_ = true;
        final = final_;
        next = kFinish;
      }
    }
    if (next == kWrite) this->StartWrite(&current_);
    if (next == kFinish) grpc::ServerWriteReactor<T>::Finish(final);
  }

  void Abandon() {
    std::function<void()> on_cancel;
    std::deque<T> dropped;
    {
      MutexLock lock(mu_);
      if (state_ == State::kOpen) on_cancel = std::exchange(on_cancel_, nullptr);
      if (state_ != State::kCancelled) {
        // Also after Finish: what is still queued reaches nobody.
        state_ = State::kCancelled;
        final_ = grpc::Status(grpc::StatusCode::CANCELLED, "the client went away");
        dropped.swap(queue_);
      }
    }
    if (on_cancel) on_cancel();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mu_);
      writing_ = false;
    }
    if (!ok) Abandon();
    Pump();
  }

  void OnCancel() override {
    Abandon();
    Pump();
  }

  void OnDone() override {
    // The last reference may be this one: drop it as the last thing.
    std::shared_ptr<StreamWriter> self = std::move(self_);
    std::function<void()> dropped;
    MutexLock lock(mu_);
    dropped = std::exchange(on_cancel_, nullptr);
  }

  const StreamWriterOptions options_;
  std::shared_ptr<StreamWriter> self_;  // gRPC's share; set before gRPC knows us
  T current_;                           // the message gRPC is writing; owned by `writing_`
  mutable Mutex mu_;
  std::deque<T> queue_ GUARDED_BY(mu_);
  State state_ GUARDED_BY(mu_) = State::kOpen;
  bool writing_ GUARDED_BY(mu_) = false;
  bool finished_ GUARDED_BY(mu_) = false;
  grpc::Status final_ GUARDED_BY(mu_);
  std::function<void()> on_cancel_ GUARDED_BY(mu_);
};

}  // namespace baton
