#include "router/gateway/openai_job.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/time/clock.h"
#include "common/base/strings.h"

namespace baton {
class OpenAiJob::Sink final : public GenerationSink {
 public:
  Sink(std::shared_ptr<OpenAiJob> job, size_t index) : job_(std::move(job)), index_(index) {}
  bool OnEvent(v1::GenerateEvent event) override { return job_->OnEvent(index_, std::move(event)); }
  void OnDone(const absl::Status& status) override { job_->OnDone(index_, status); }

 private:
  const std::shared_ptr<OpenAiJob> job_;
  const size_t index_;
};

namespace {

// A header that names the fields nobody knew, so that a misspelt one does not vanish in silence.
HttpHeaders IgnoredFields(const std::vector<std::string>& fields) {
  constexpr size_t kNamed = 16;
  constexpr size_t kLength = 64;
  std::string names;
  for (size_t i = 0; i < std::min(fields.size(), kNamed); ++i) {
    std::string name = fields[i].substr(0, kLength);
    for (char& c : name) {
      if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-') c = '?';
    }
    names += Cat(i == 0 ? "" : ", ", name);
  }
  if (names.empty()) return {};
  return {{"x-baton-ignored-fields", names}};
}

}  // namespace

OpenAiJob::OpenAiJob(OpenAiRequest request, const std::string& request_id,
                     std::shared_ptr<HttpReply> reply)
    : request_(std::move(request)),
      reply_(std::move(reply)),
      headers_(IgnoredFields(request_.ignored)) {
  const bool chat = request_.kind == OpenAiKind::kChat;
  head_.kind = request_.kind;
  head_.id = Cat(chat ? "chatcmpl-" : "cmpl-", request_id);
  head_.model = request_.prompts.front().model();
  head_.created = absl::ToUnixSeconds(absl::Now());
  head_.logprobs = request_.logprobs;
  head_.include_usage = request_.include_usage;
  head_.include_timing = request_.include_timing;
}

void OpenAiJob::Start(GenerationBackend& backend, OpenAiRequest request, CallInfo info,
                      std::shared_ptr<HttpReply> reply) {
  std::shared_ptr<OpenAiJob> job(
      new OpenAiJob(std::move(request), info.request_id, std::move(reply)));
  if (job->head_.model.empty()) {
    const std::vector<v1::ModelInfo> models = backend.Models();
    if (models.size() == 1) job->head_.model = models.front().name();
  }
  job->Run(backend, info);
}

void OpenAiJob::Run(GenerationBackend& backend, const CallInfo& common) {
  const size_t n = static_cast<size_t>(request_.n);
  const size_t count = n * request_.prompts.size();
  {
    MutexLock lock(mu_);
    for (size_t i = 0; i < count; ++i) {
      const v1::GenerateRequest& prompt = request_.prompts[i / n];
      std::optional<std::string> text;
      if (!request_.echo) text = "";
      if (request_.echo && prompt.has_text()) text = prompt.text();
      choices_.emplace_back(PromptEcho(std::move(text)));
    }
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
    CallInfo info = common;
    if (count > 1) info.request_id = Cat(common.request_id, "-", i);
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
    alive = Take(choice, index, std::move(event));
    if (!alive) over_ = true;
  }
  if (!alive) CancelAll();
  return alive;
}

bool OpenAiJob::StartChoice(size_t index) {
  if (!streaming_) {
    streaming_ = true;
    HttpHeaders headers = headers_;
    headers.emplace_back("cache-control", "no-cache");
    reply_->BeginStream("text/event-stream; charset=utf-8", std::move(headers));
  }
  Choice& choice = choices_[index];
  if (std::exchange(choice.started, true) || request_.kind != OpenAiKind::kChat) return true;
  return reply_->Write(RoleChunk(head_, static_cast<int>(index)));
}

bool OpenAiJob::Take(Choice& choice, size_t index, v1::GenerateEvent event) {
  if (request_.stream && !StartChoice(index)) return false;
  v1::GenerateEvent::Delta prompt;
  bool over = true;
  if (event.has_delta()) {
    prompt.mutable_logprobs()->Swap(event.mutable_delta()->mutable_prompt_logprobs());
    over = event.delta().token_ids_size() > 0 || !event.delta().text().empty();
  }
  if (!choice.prompt_over && !ShowPrompt(choice, index, std::move(prompt), over)) return false;
  if (event.has_finished()) {
    return !request_.stream ||
           reply_->Write(FinishChunk(head_, static_cast<int>(index), event.finished()));
  }
  std::vector<int64_t> offsets;
  for (const v1::TokenLogprobs& token : event.delta().logprobs()) {
    offsets.push_back(choice.offsets.Next(token.chosen().bytes()));
  }
  return Show(choice, index, std::move(*event.mutable_delta()), offsets);
}

bool OpenAiJob::ShowPrompt(Choice& choice, size_t index, v1::GenerateEvent::Delta scores,
                           bool over) {
  std::vector<int64_t> offsets;
  for (const v1::TokenLogprobs& token : scores.logprobs()) {
    offsets.push_back(choice.echo.Next(token.chosen().bytes()));
  }
  if (over) {
    choice.prompt_over = true;
    choice.echo.Finish();
    choice.offsets = TokenOffsets(choice.echo.characters());
  }
  scores.set_text(choice.echo.TakeText());
  return Show(choice, index, std::move(scores), offsets);
}

bool OpenAiJob::Show(Choice& choice, size_t index, v1::GenerateEvent::Delta delta,
                     const std::vector<int64_t>& offsets) {
  if (!request_.stream) {
    choice.gathered.text += delta.text();
    for (v1::TokenLogprobs& token : *delta.mutable_logprobs()) {
      choice.gathered.logprobs.push_back(std::move(token));
    }
    choice.gathered.offsets.insert(choice.gathered.offsets.end(), offsets.begin(), offsets.end());
    return true;
  }
  // Tokens without text yet (half a character, a stop text that may follow) say nothing to a
  // client unless it asked for log-probabilities.
  if (delta.text().empty() && (!request_.logprobs || delta.logprobs().empty())) return true;
  return reply_->Write(DeltaChunk(head_, static_cast<int>(index), delta, offsets));
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
  for (Choice& choice : choices_) texts.push_back(std::move(choice.gathered));
  HttpResponse response;
  response.headers = headers_;
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
