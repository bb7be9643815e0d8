// A GenerationBackend that says what it is told to.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "router/gateway/backend.h"

namespace baton {

// One generation under the test's control.
class FakeGeneration : public Generation {
 public:
  FakeGeneration(CallInfo i, v1::GenerateRequest r, std::shared_ptr<GenerationSink> s)
      : info(std::move(i)), request(std::move(r)), sink_(std::move(s)) {}

  void Cancel() override {
    cancelled.store(true);
    End(absl::CancelledError("cancelled"));
  }
  bool Delta(const std::string& text, std::vector<int64_t> ids = {1}) {
    v1::GenerateEvent event;
    event.mutable_delta()->set_text(text);
    event.mutable_delta()->mutable_token_ids()->Assign(ids.begin(), ids.end());
    if (request.sampling().logprobs()) {
      auto* token = event.mutable_delta()->add_logprobs();
      token->mutable_chosen()->set_bytes(text);
      token->mutable_chosen()->set_logprob(-0.5F);
      auto* top = token->add_top();
      top->set_bytes("\xe2");  // the start of a character
      top->set_logprob(-1.5F);
    }
    return sink_->OnEvent(std::move(event));
  }
  bool Event(v1::GenerateEvent event) { return sink_->OnEvent(std::move(event)); }
  void Finished(v1::FinishReason reason, int64_t prompt, int64_t completion, int64_t cached = 0) {
    v1::GenerateEvent event;
    event.mutable_finished()->set_reason(reason);
    event.mutable_finished()->mutable_usage()->set_prompt_tokens(prompt);
    event.mutable_finished()->mutable_usage()->set_completion_tokens(completion);
    event.mutable_finished()->mutable_usage()->set_cached_tokens(cached);
    event.mutable_finished()->mutable_timing()->set_ttft_s(0.25);
    sink_->OnEvent(std::move(event));
    End(absl::OkStatus());
  }
  void End(const absl::Status& status) {
    if (!ended_.exchange(true)) sink_->OnDone(status);
  }

  const CallInfo info;
  const v1::GenerateRequest request;
  std::atomic<bool> cancelled{false};

 private:
  const std::shared_ptr<GenerationSink> sink_;
  std::atomic<bool> ended_{false};
};

class FakeBackend : public GenerationBackend {
 public:
  // Called for each generation, on the caller's thread. Empty: nothing happens by itself.
  std::function<void(const std::shared_ptr<FakeGeneration>&)> script;
  std::atomic<bool> ready{true};

  std::shared_ptr<Generation> Generate(CallInfo info, v1::GenerateRequest request,
                                       std::shared_ptr<GenerationSink> sink) override {
    auto generation =
        std::make_shared<FakeGeneration>(std::move(info), std::move(request), std::move(sink));
    {
      MutexLock lock(mu_);
      all_.push_back(generation);
      changed_.NotifyAll();
    }
    if (script) script(generation);
    return generation;
  }
  std::vector<v1::ModelInfo> Models() const override {
    v1::ModelInfo model;
    model.set_name("tiny");
    model.set_base_model("base");
    model.set_max_context_tokens(2048);
    model.set_ready(ready.load());
    return {model};
  }
  bool Ready() const override { return ready.load(); }

  // The generation number `index`, once it exists; null after 5 s.
  std::shared_ptr<FakeGeneration> At(size_t index) {
    MutexLock lock(mu_);
    changed_.WaitFor(mu_, std::chrono::seconds(5), [&] { return all_.size() > index; });
    return index < all_.size() ? all_[index] : nullptr;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::shared_ptr<FakeGeneration>> all_;
};

}  // namespace baton
