#include "common/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/engine/engine_core.h"
#include "common/sampling/validate.h"

namespace baton {
namespace {

// How long a thread that waits for pages sleeps: they may come back from other threads (landings,
// pages a sender still holds), which tell nobody.
constexpr std::chrono::milliseconds kPagePoll(2);
// How stale the page gauges of an idle engine may be.
constexpr std::chrono::milliseconds kIdleRefresh(500);

std::uint64_t RandomSeed() {
  thread_local std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

absl::Status CheckTokens(const char* field, const std::vector<std::int32_t>& tokens,
                         std::int64_t vocab) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab) {
      return absl::InvalidArgumentError(Cat(field, "[", i, "]: token id ", tokens[i],
                                            " is outside the vocabulary [0, ", vocab - 1, "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckResources(const EngineResources& r, const EngineOptions& o) {
  if (r.model == nullptr || r.pool == nullptr || r.gate == nullptr || r.executor == nullptr) {
    return absl::InvalidArgumentError("engine: model, pool, gate and executor are required");
  }
  if (r.pool->layout().head_dim != r.model->config().head_dim) {
    return absl::InvalidArgumentError(Cat("engine: the pool's head_dim ", r.pool->layout().head_dim,
                                          " is not the model's ", r.model->config().head_dim));
  }
  if (o.step_tokens < kPageRows || o.max_running < 1 || o.max_waiting < 1 || o.max_context < 0) {
    return absl::InvalidArgumentError(
        Cat("engine: step_tokens ", o.step_tokens, " (at least ", kPageRows, "), max_running ",
            o.max_running, " and max_waiting ", o.max_waiting, " (at least 1), max_context ",
            o.max_context, " (at least 0)"));
  }
  return absl::OkStatus();
}

// What ends the generation without being text; sorted.
std::vector<std::int32_t> EndTokens(const EngineRequest& request) {
  std::vector<std::int32_t> ids = request.stop.stop_token_ids;
  if (!request.stop.ignore_eos) {
    ids.insert(ids.end(), request.eos_token_ids.begin(), request.eos_token_ids.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

absl::Status CheckHandoff(const EngineRequest& request) {
  const auto prompt = static_cast<std::int64_t>(request.tokens.size());
  if (request.handoff_end < 0 || request.handoff_end % kPageRows != 0 ||
      request.handoff_end >= prompt) {
    return absl::InvalidArgumentError(Cat("handoff_end: ", request.handoff_end,
                                          " is not a multiple of 16 below the prompt's ", prompt,
                                          " tokens"));
  }
  if (request.handoff_end > 0 && request.prefill_only) {
    return absl::InvalidArgumentError("handoff_end: a prefill_only request takes no hand-off");
  }
  if (request.handoff_end > 0 && request.sampling.prompt_logprobs) {
    return absl::InvalidArgumentError(
        "handoff_end: prompt_logprobs needs every row to be computed here");
  }
  if (request.report_from < 0 || request.report_from % kPageRows != 0 ||
      request.report_from > prompt) {
    return absl::InvalidArgumentError(Cat("report_from: ", request.report_from,
                                          " is not a multiple of 16 within the prompt's ", prompt,
                                          " tokens"));
  }
  if (static_cast<std::int64_t>(request.cache.blocks.size()) > prompt / kBlockTokens) {
    return absl::InvalidArgumentError(Cat("cache.blocks: ", request.cache.blocks.size(),
                                          " hashes, the prompt of ", prompt, " tokens has ",
                                          prompt / kBlockTokens, " full blocks"));
  }
  return absl::OkStatus();
}

absl::Status CheckRun(const EngineRequest& request, int layers) {
  const LayerRun& run = request.run;
  const bool reports_run = request.report == ReportedStates::kAroundRun;
  if (run.empty()) {
    if (!reports_run) return absl::OkStatus();
    return absl::InvalidArgumentError("run: a report around a run needs one");
  }
  if (run.begin < 0 || run.end < run.begin || run.end > layers) {
    return absl::InvalidArgumentError(
        Cat("run: layers [", run.begin, ", ", run.end, ") of a model of ", layers));
  }
  if (request.prefill_only ? !reports_run : request.handoff_end == 0) {
    return absl::InvalidArgumentError("run: needs a hand-off, or a report around it");
  }
  return absl::OkStatus();
}

absl::Status CheckGeneration(const EngineRequest& request, std::int64_t vocab,
                             std::int32_t max_context) {
  const SamplingLimits limits{.vocab_size = vocab, .scoring = request.sampling.prompt_logprobs};
  BATON_RETURN_IF_ERROR(ValidateSampling(request.sampling, limits));
  BATON_RETURN_IF_ERROR(ValidateStop(request.stop, limits));
  const auto prompt = static_cast<std::int64_t>(request.tokens.size());
  BATON_RETURN_IF_ERROR(CheckContext(prompt, request.stop.max_tokens, max_context));
  BATON_RETURN_IF_ERROR(CheckTokens("resume_tokens", request.resume_tokens, vocab));
  BATON_RETURN_IF_ERROR(CheckTokens("eos_token_ids", request.eos_token_ids, vocab));
  if (static_cast<std::int64_t>(request.resume_tokens.size()) > request.stop.max_tokens) {
    return absl::InvalidArgumentError(Cat("resume_tokens: ", request.resume_tokens.size(),
                                          " tokens, max_tokens is ", request.stop.max_tokens));
  }
  return absl::OkStatus();
}

}  // namespace

class Engine::Impl {
 public:
  Impl(EngineResources resources, EngineOptions options)
      : resources_(std::move(resources)),
        options_(std::move(options)),
        core_(resources_, options_) {
    reclaimer_ = resources_.pool->AddReclaimer([this](std::int64_t pages) {
      MutexLock lock(mu_);
      if (dry_ || stats_.cached_blocks == 0) return false;
      reclaim_ = std::max(reclaim_, pages);
      wake_.NotifyOne();
      return true;
    });
    core_.set_reclaimer(reclaimer_.get());
    stats_ = core_.GetStats();
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() {
    {
      MutexLock lock(mu_);
      stopping_ = true;
    }
    wake_.NotifyOne();
    thread_.join();
  }

  absl::StatusOr<RequestHandle> Submit(EngineRequest request,
                                       std::shared_ptr<RequestListener> listener) {
    if (listener == nullptr) return absl::InvalidArgumentError("listener: is required");
    BATON_RETURN_IF_ERROR(Check(request));
    BATON_ASSIGN_OR_RETURN(StopMatcher matcher, StopMatcher::Create(request.stop.stop));
    const Tokenizer* tokenizer = resources_.tokenizer.get();
    // After a special token a text begins, otherwise the prompt's goes on: a space is part of it.
    const bool continues = tokenizer != nullptr && !tokenizer->IsSpecial(request.tokens.back());
    TextStream text(tokenizer, std::move(matcher), request.stop.min_tokens, continues);
    {
      MutexLock lock(mu_);
      BATON_RETURN_IF_ERROR(CheckOpen());
    }
    // Copies of a long prompt are made without the lock: the engine's thread takes it every step.
    const RequestHandle handle = next_handle_.fetch_add(1, std::memory_order_relaxed);
    const ServiceKey key{request.priority, handle};
    auto sequence = std::make_unique<Sequence>(handle, key, std::move(request), std::move(listener),
                                               std::move(text), layers(), kv_heads(),
                                               resources_.pool->layout());
    const std::optional<std::uint64_t>& seed = sequence->request.sampling.seed;
    sequence->seed = seed.has_value() ? *seed : RandomSeed();
    sequence->submitted_at = Clock::Real().NowSeconds();
    sequence->end_tokens = EndTokens(sequence->request);
    MutexLock lock(mu_);
    BATON_RETURN_IF_ERROR(CheckOpen());  // again: others may have come first
    ++stats_.waiting;
    ++live_;
    Enqueue({.kind = Command::kSubmit, .handle = handle, .sequence = std::move(sequence)});
    return handle;
  }

  void Abort(RequestHandle handle, absl::Status reason) {
    MutexLock lock(mu_);
    Enqueue({.kind = Command::kAbort, .handle = handle, .reason = std::move(reason)});
  }
  void PublishPrefix(RequestHandle handle) {
    MutexLock lock(mu_);
    Enqueue({.kind = Command::kPublish, .handle = handle});
  }
  void AbandonPrefix(RequestHandle handle) {
    MutexLock lock(mu_);
    Enqueue({.kind = Command::kAbandon, .handle = handle});
  }
  void ClearPrefixCache() {
    MutexLock lock(mu_);
    Enqueue({.kind = Command::kClearCache});
  }

  bool Drain(std::chrono::nanoseconds timeout) {
    MutexLock lock(mu_);
    draining_ = true;
    return idle_.WaitFor(mu_, timeout, [this]() REQUIRES(mu_) { return live_ == 0; });
  }

  EngineStats GetStats() const {
    EngineStats stats;
    {
      MutexLock lock(mu_);
      stats = stats_;
    }
    stats.pool = resources_.pool->GetStats();
    return stats;
  }

  const EngineOptions& options() const { return options_; }
  const Model& model() const { return *resources_.model; }

 private:
  struct Command {
    enum Kind { kSubmit, kAbort, kPublish, kAbandon, kClearCache } kind = kSubmit;
    RequestHandle handle = 0;
    std::unique_ptr<Sequence> sequence = nullptr;
    absl::Status reason = absl::OkStatus();
  };

  int layers() const { return static_cast<int>(model().config().layers); }
  int kv_heads() const { return static_cast<int>(model().config().kv_heads); }

  absl::Status Check(const EngineRequest& request) const;
  absl::Status CheckPages(const EngineRequest& request) const;
  // Whether one more request may wait.
  absl::Status CheckOpen() const REQUIRES(mu_);

  void Enqueue(Command command) REQUIRES(mu_) {
    commands_.push_back(std::move(command));
    wake_.NotifyOne();
  }

  void Run();
  // Carries out what was asked, after waiting for something if there is nothing to do. False: stop.
  bool TakeCommands(bool wait);
  void Execute(Command command);
  void PublishStats();

  const EngineResources resources_;
  const EngineOptions options_;

  // Engine thread only.
  EngineCore core_;

  std::atomic<RequestHandle> next_handle_{1};

  mutable Mutex mu_;
  CondVar wake_;
  CondVar idle_;
  std::vector<Command> commands_ GUARDED_BY(mu_);
  std::int64_t reclaim_ GUARDED_BY(mu_) = 0;
  bool dry_ GUARDED_BY(mu_) = false;  // had nothing to give when last asked; nothing changed since
  bool stopping_ GUARDED_BY(mu_) = false;
  bool draining_ GUARDED_BY(mu_) = false;
  std::int64_t live_ GUARDED_BY(mu_) = 0;  // submitted, not finished
  EngineStats stats_ GUARDED_BY(mu_);

  std::shared_ptr<void> reclaimer_;  // before what its callback uses goes away
  std::thread thread_;
};

absl::Status Engine::Impl::Check(const EngineRequest& request) const {
  const ModelConfig& config = model().config();
  if (request.tokens.empty()) return absl::InvalidArgumentError("tokens: the prompt is empty");
  BATON_RETURN_IF_ERROR(CheckTokens("tokens", request.tokens, config.vocab));
  const int adapters = resources_.adapters == nullptr ? 0 : resources_.adapters->size();
  if (request.adapter < -1 || request.adapter >= adapters) {
    return absl::InvalidArgumentError(
        Cat("adapter: ", request.adapter, " is outside [-1, ", adapters - 1, "]"));
  }
  if (request.prefill_only) {
    if (!request.resume_tokens.empty()) {
      return absl::InvalidArgumentError("resume_tokens: a prefill_only request generates nothing");
    }
    if (static_cast<std::int64_t>(request.tokens.size()) > options_.max_context) {
      return absl::InvalidArgumentError(Cat("prompt: ", request.tokens.size(),
                                            " tokens are over the context of ",
                                            options_.max_context, " tokens"));
    }
  } else {
    BATON_RETURN_IF_ERROR(CheckGeneration(request, config.vocab, options_.max_context));
  }
  BATON_RETURN_IF_ERROR(CheckHandoff(request));
  BATON_RETURN_IF_ERROR(CheckRun(request, layers()));
  return CheckPages(request);
}

absl::Status Engine::Impl::CheckPages(const EngineRequest& request) const {
  const auto prompt = static_cast<std::int32_t>(request.tokens.size());
  const auto rows =
      static_cast<std::int32_t>(request.prefill_only ? prompt : prompt + request.stop.max_tokens);
  std::int64_t need = SequenceTable::PagesFor(rows, layers(), kv_heads());
  if (request.handoff_end > 0) {
    // While the prefix lands, the sinks have a page of their own per table, a run its stream.
    const auto resumed = static_cast<std::int32_t>(request.resume_tokens.size());
    const std::int32_t landing = std::min(prompt + resumed + 1, rows);
    std::int64_t needed = SequenceTable::PagesFor(landing, layers(), kv_heads()) +
                          SequenceTable::PagesFor(kSinkTokens, layers(), kv_heads());
    if (!request.run.empty()) {
      needed += PrefixStream::PagesFor(request.handoff_end - kSinkTokens, model().config().hidden,
                                       resources_.pool->layout());
    }
    need = std::max(need, needed);
  }
  if (need <= resources_.pool->total_pages()) return absl::OkStatus();
  return absl::InvalidArgumentError(Cat("prompt of ", prompt, " tokens + max_tokens ",
                                        request.prefill_only ? 0 : request.stop.max_tokens,
                                        " needs ", need, " KV pages, the pool has ",
                                        resources_.pool->total_pages()));
}

absl::Status Engine::Impl::CheckOpen() const {
  if (draining_ || stopping_) {
    return absl::UnavailableError(Cat(options_.name, ": no new requests, shutting down"));
  }
  if (stats_.waiting >= options_.max_waiting) {
    return absl::ResourceExhaustedError(Cat(options_.name, ": ", stats_.waiting,
                                            " requests are waiting, the limit is ",
                                            options_.max_waiting));
  }
  return absl::OkStatus();
}

void Engine::Impl::Run() {
  while (TakeCommands(/*wait=*/true)) {
    core_.Admit();
    if (core_.HasWork()) {
      EngineCore::StepOutcome outcome;
      {
        ComputeGate::Turn turn(*resources_.gate);
        // Others may have computed for a while: hear aborts and arrivals first.
        TakeCommands(/*wait=*/false);
        core_.Admit();
        outcome = core_.Step();
      }
      core_.Deliver(std::move(outcome));
    }
    PublishStats();
  }
  core_.AbortAll(absl::CancelledError(Cat(options_.name, ": shutting down")));
  core_.ClearCache();
  PublishStats();
}

bool Engine::Impl::TakeCommands(bool wait) {
  std::vector<Command> commands;
  std::int64_t reclaim = 0;
  bool stopping = false;
  {
    MutexLock lock(mu_);
    const bool stalled = core_.HasWork() && core_.WaitsForPages();
    if (wait && (stalled || !core_.HasWork())) {
      const auto woken = [this]() REQUIRES(mu_) {
        return stopping_ || !commands_.empty() || reclaim_ > 0;
      };
      wake_.WaitFor(mu_, stalled || core_.HasWaiting() ? kPagePoll : kIdleRefresh, woken);
    }
    commands.swap(commands_);
    reclaim = std::exchange(reclaim_, 0);
    stopping = stopping_;
  }
  for (Command& command : commands) Execute(std::move(command));
  if (reclaim > 0 && core_.EvictPages(reclaim) < reclaim) {
    MutexLock lock(mu_);
    dry_ = true;
  }
  return !stopping;
}

void Engine::Impl::Execute(Command command) {
  switch (command.kind) {
    case Command::kSubmit:
      return core_.Add(std::move(command.sequence));
    case Command::kAbort:
      return core_.Abort(command.handle, command.reason);
    case Command::kPublish:
      return core_.PublishPrefix(command.handle);
    case Command::kAbandon:
      return core_.AbandonPrefix(command.handle);
    case Command::kClearCache:
      return core_.ClearCache();
  }
}

void Engine::Impl::PublishStats() {
  const EngineStats stats = core_.GetStats();
  const std::int64_t finished = core_.TakeFinished();
  MutexLock lock(mu_);
  if (finished > 0 || stats.cached_blocks > stats_.cached_blocks) dry_ = false;
  stats_ = stats;
  for (const Command& command : commands_) stats_.waiting += command.kind == Command::kSubmit;
  live_ -= finished;
  if (live_ == 0) idle_.NotifyAll();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(EngineResources resources,
                                                       EngineOptions options) {
  BATON_RETURN_IF_ERROR(CheckResources(resources, options));
  const auto model_context = static_cast<std::int32_t>(
      std::min<std::int64_t>(resources.model->config().max_context, kMaxMaxTokens));
  if (options.max_context == 0) options.max_context = model_context;
  if (options.max_context > model_context) {
    return absl::InvalidArgumentError(
        Cat("max_context: ", options.max_context, " is over the model's ", model_context));
  }
  return std::unique_ptr<Engine>(
      new Engine(std::make_unique<Impl>(std::move(resources), std::move(options))));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

absl::StatusOr<RequestHandle> Engine::Submit(EngineRequest request,
                                             std::shared_ptr<RequestListener> listener) {
  return impl_->Submit(std::move(request), std::move(listener));
}
void Engine::Abort(RequestHandle handle, absl::Status reason) {
  impl_->Abort(handle, std::move(reason));
}
void Engine::PublishPrefix(RequestHandle handle) { impl_->PublishPrefix(handle); }
void Engine::AbandonPrefix(RequestHandle handle) { impl_->AbandonPrefix(handle); }
bool Engine::Drain(std::chrono::nanoseconds timeout) { return impl_->Drain(timeout); }
void Engine::ClearPrefixCache() { impl_->ClearPrefixCache(); }
EngineStats Engine::GetStats() const { return impl_->GetStats(); }
const EngineOptions& Engine::options() const { return impl_->options(); }
const Model& Engine::model() const { return impl_->model(); }

}  // namespace baton
