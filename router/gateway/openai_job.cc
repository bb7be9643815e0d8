#include "router/gateway/openai_job.h"

#include <utility>

#include "absl/time/clock.h"
#include "common/base/strings.h"

namespace baton {
namespace {

int64_t Characters(const std::string& text) {
  int64_t count = 0;
  for (unsigned char c : text) count += (c & 0xC0) != 0x80;
  return count;
}

}  // namespace

class OpenAiJob::Sink final : public GenerationSink {
 public:
  Sink(std::shared_ptr<OpenAiJob> job, size_t index) : job_(std::move(job)), index_(index) {}
  bool OnEvent(v1::GenerateEvent event) override { return job_->OnEvent(index_, std::move(event)); }
  void OnDone(const absl::Status& status) override { job_->OnDone(index_, status); }

 private:
  const std::shared_ptr<OpenAiJob> job_;
  const size_t index_;
};

OpenAiJob::OpenAiJob(OpenAiRequest request, const std::string& request_id,
                     std::shared_ptr<HttpReply> reply)
    : request_(std::move(request)), reply_(std::move(reply)) {
  const bool chat = request_.kind == OpenAiKind::kChat;
  head_.kind = request_.kind;
  head_.id = Cat(chat ? "chatcmpl-" : "cmpl-", request_id);
  head_.model = request_.prompts.front().model();
  head_.created = absl::ToUnixSeconds(absl::Now());
  head_.logprobs = request_.logprobs;
  head_.include_usage = request_.include_usage;
  head_.include_timing = request_.include_timing;
}

void OpenAiJob::Start(GenerationBackend& backend, OpenAiRequest request,
                      const std::string& request_id, std::chrono::nanoseconds arrival,
                      std::shared_ptr<HttpReply> reply) {
  std::shared_ptr<OpenAiJob> job(new OpenAiJob(std::move(request), request_id, std::move(reply)));
  if (job->head_.model.empty()) {
    const std::vector<v1::ModelInfo> models = backend.Models();
    if (models.size() == 1) job->head_.model = models.front().name();
  }
  job->Run(backend, request_id, arrival);
}

void OpenAiJob::Run(GenerationBackend& backend, const std::string& request_id,
                    std::chrono::nanoseconds arrival) {
  const size_t n = static_cast<size_t>(request_.n);
  const size_t count = n * request_.prompts.size();
  {
    MutexLock lock(mu_);
    choices_.resize(count);
    open_ = count;
  }
  reply_->SetOnDisconnect([weak = weak_from_this()] {
    if (auto job = weak.lock()) job->CancelAll();
  });
  for (size_t i = 0; i < count; ++i) {
    v1::GenerateRequest request = request_.prompts[i / n];
    if (request.sampling().has_seed()) {
      request.mutable_sampling()->set_seed(request.sampling().seed() + i % n);
    }
    CallInfo info;
    info.request_id = count == 1 ? request_id : Cat(request_id, "-", i);
    info.arrival = arrival;
    info.stream = request_.stream;
    // The backend may call the sink before it returns, so no lock is held.
    std::shared_ptr<Generation> generation = backend.Generate(
        std::move(info), std::move(request), std::make_shared<Sink>(shared_from_this(), i));
    bool cancel = false;
    {
      MutexLock lock(mu_);
      cancel = over_;
      if (!choices_[i].done && !over_) choices_[i].generation = generation;
    }
    if (cancel) generation->Cancel();
  }
}

bool OpenAiJob::OnEvent(size_t index, v1::GenerateEvent event) {
  bool alive = true;
  {
    MutexLock lock(mu_);
    Choice& choice = choices_[index];
    if (over_ || choice.finished) return !over_;
    if (event.has_finished()) {
      choice.finished = true;
      choice.gathered.finished = event.finished();
    }
    if (request_.stream) {
      alive = StreamEvent(index, event);
      if (!alive) over_ = true;
    } else if (event.has_delta()) {
      choice.gathered.text += event.delta().text();
      for (auto& token : *event.mutable_delta()->mutable_logprobs()) {
        choice.gathered.logprobs.push_back(std::move(token));
      }
    }
  }
  if (!alive) CancelAll();
  return alive;
}

bool OpenAiJob::StartChoice(size_t index) {
  if (!streaming_) {
    streaming_ = true;
    reply_->BeginStream("text/event-stream; charset=utf-8", {{"cache-control", "no-cache"}});
  }
  Choice& choice = choices_[index];
  if (choice.started) return true;
  choice.started = true;
  if (request_.kind == OpenAiKind::kChat) {
    return reply_->Write(RoleChunk(head_, static_cast<int>(index)));
  }
  if (!request_.echo) return true;
  v1::GenerateEvent::Delta prompt;
  prompt.set_text(request_.prompts[index / static_cast<size_t>(request_.n)].text());
  choice.characters += Characters(prompt.text());
  return reply_->Write(DeltaChunk(head_, static_cast<int>(index), prompt, 0));
}

bool OpenAiJob::StreamEvent(size_t index, const v1::GenerateEvent& event) {
  if (!StartChoice(index)) return false;
  Choice& choice = choices_[index];
  if (event.has_finished()) {
    return reply_->Write(FinishChunk(head_, static_cast<int>(index), event.finished()));
  }
  const auto& delta = event.delta();
  // Tokens without text yet (half a character, a stop text that may follow) say nothing to a
  // client unless it asked for log-probabilities.
  if (delta.text().empty() && (!request_.logprobs || delta.logprobs().empty())) return true;
  const bool alive =
      reply_->Write(DeltaChunk(head_, static_cast<int>(index), delta, choice.characters));
  choice.characters += Characters(delta.text());
  return alive;
}

void OpenAiJob::OnDone(size_t index, const absl::Status& status) {
  std::shared_ptr<Generation> dropped;
  bool cancel_others = false;
  {
    MutexLock lock(mu_);
    Choice& choice = choices_[index];
    if (choice.done) return;
    choice.done = true;
    dropped = std::move(choice.generation);
    --open_;
    if (over_) return;
    if (!status.ok() || !choice.finished) {
      Fail(status.ok() ? absl::InternalError("the generation ended without a result") : status);
      cancel_others = true;
    } else if (open_ == 0) {
      Complete();
    }
  }
  if (cancel_others) CancelAll();
}

void OpenAiJob::Fail(const absl::Status& status) {
  over_ = true;
  const ApiError error = FromStatus(status);
  if (!streaming_) return reply_->Send(ErrorResponse(error));
  reply_->Write(ErrorEvent(ErrorBody(error)));
  reply_->EndStream(false);
}

void OpenAiJob::Complete() {
  over_ = true;
  if (request_.stream) {
    if (request_.include_usage) reply_->Write(UsageChunk(head_, TotalUsage()));
    reply_->Write(kDoneEvent);
    return reply_->EndStream(true);
  }
  const v1::Usage usage = TotalUsage();
  std::vector<ChoiceText> texts;
  for (size_t i = 0; i < choices_.size(); ++i) {
    texts.push_back(std::move(choices_[i].gathered));
    if (request_.echo) {
      texts.back().text.insert(0, request_.prompts[i / static_cast<size_t>(request_.n)].text());
    }
  }
  HttpResponse response;
  response.body = WholeReply(head_, texts, usage);
  reply_->Send(std::move(response));
}

v1::Usage OpenAiJob::TotalUsage() const {
  v1::Usage total;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const v1::Usage& one = choices_[i].gathered.finished.usage();
    total.set_completion_tokens(total.completion_tokens() + one.completion_tokens());
    if (i % static_cast<size_t>(request_.n) != 0) continue;  // a prompt counts once
    total.set_prompt_tokens(total.prompt_tokens() + one.prompt_tokens());
    total.set_cached_tokens(total.cached_tokens() + one.cached_tokens());
    total.set_transferred_tokens(total.transferred_tokens() + one.transferred_tokens());
  }
  return total;
}

void OpenAiJob::CancelAll() {
  std::vector<std::shared_ptr<Generation>> running;
  {
    MutexLock lock(mu_);
    over_ = true;
    for (Choice& choice : choices_) {
      if (choice.generation) running.push_back(std::move(choice.generation));
    }
  }
  for (auto& generation : running) generation->Cancel();
}

}  // namespace baton
