#include "common/engine/engine_core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/logging.h"

namespace baton {
namespace {

// How long nobody is pre-empted while another engine may give cached pages back.
constexpr double kYieldPatience = 0.1;
// Prompt tokens in a delta of log-probabilities: with 20 alternatives each it stays small.
constexpr std::size_t kScoresPerDelta = 64;

double Now() { return Clock::Real().NowSeconds(); }

}  // namespace

EngineCore::EngineCore(const EngineResources& resources, const EngineOptions& options)
    : resources_(resources),
      options_(options),
      layers_(static_cast<int>(resources.model->config().layers)),
      kv_heads_(static_cast<int>(resources.model->config().kv_heads)),
      runner_(resources.model, resources.adapters.get(), *resources.executor),
      cache_(layers_, kv_heads_) {
  if (resources.metrics != nullptr) metrics_ = EngineMetrics(*resources.metrics, options.name);
}

void EngineCore::Add(std::unique_ptr<Sequence> sequence) {
  Sequence& s = *sequence;
  sequences_.emplace(s.handle, std::move(sequence));
  waiting_.emplace(s.key, &s);
  for (const std::int32_t token : s.request.resume_tokens) {
    const TokenOutcome outcome = s.Accept(token);  // its text was delivered with the token
    if (!outcome.finished) continue;
    FinishInfo info;
    info.reason = outcome.reason;
    info.stop_text = outcome.stop_text;
    info.stop_token_id = outcome.stop_token_id;
    Finish(s, std::move(info));
    return;
  }
}

void EngineCore::Abort(RequestHandle handle, const absl::Status& reason) {
  const auto it = sequences_.find(handle);
  if (it == sequences_.end()) return;
  FinishInfo info;
  info.status = reason.ok() ? absl::CancelledError("cancelled") : reason;
  info.reason = FinishReason::kCancelled;
  Finish(*it->second, std::move(info));
}

void EngineCore::AbortAll(const absl::Status& reason) {
  while (!sequences_.empty()) Abort(sequences_.begin()->first, reason);
}

void EngineCore::PublishPrefix(RequestHandle handle) {
  const auto it = sequences_.find(handle);
  if (it == sequences_.end() || !it->second->parked()) return;
  it->second->landing->published = true;
  TakeOverIfComplete(*it->second);
}

void EngineCore::AbandonPrefix(RequestHandle handle) {
  const auto it = sequences_.find(handle);
  if (it == sequences_.end()) return;
  Sequence& sequence = *it->second;
  sequence.handoff_open = false;
  // A late writer may still hold the landing, so the sequence starts over in other pages.
  if (sequence.parked()) BackToWaiting(sequence);
}

void EngineCore::Admit() {
  while (!waiting_.empty() && HasSeat(*waiting_.begin()->second)) {
    if (!TryAdmit(*waiting_.begin()->second)) return;
  }
}

bool EngineCore::HasSeat(const Sequence& sequence) const {
  const auto ahead = std::count_if(running_.begin(), running_.lower_bound(sequence.key),
                                   [](const auto& entry) { return !entry.second->parked(); });
  return ahead < options_.max_running;
}

bool EngineCore::TryAdmit(Sequence& sequence) {
  const std::vector<PrefixCache::CachedBlock> found = FindCached(sequence);
  const auto cached = static_cast<std::int32_t>(found.size()) * kBlockTokens;
  const bool land = sequence.handoff_open && cached < sequence.request.handoff_end;
  std::int64_t need = SequenceTable::PagesFor(sequence.RowsToAdmit(), layers_, kv_heads_) -
                      SequenceTable::PagesFor(cached, layers_, kv_heads_);
  if (land && cached == 0) need += SequenceTable::PagesFor(kSinkTokens, layers_, kv_heads_);
  if (land && !sequence.request.run.empty()) {
    const std::int32_t begin = cached == 0 ? kSinkTokens : cached;
    need += PrefixStream::PagesFor(sequence.request.handoff_end - begin,
                                   resources_.model->config().hidden, resources_.pool->layout());
  }
  const std::int64_t wanted = need + Headroom();
  // The head of the queue is tried at every step: thousands of references are only copied when
  // there is a chance.
  if (!CanFree(wanted)) return PreemptFor(sequence, wanted) && TryAdmit(sequence);
  short_since_ = 0;
  AttachCached(sequence, found);
  absl::StatusOr<Reservation> reservation = absl::ResourceExhaustedError("");
  if (MakeFree(wanted)) reservation = resources_.pool->Reserve(options_.name, need);
  if (!reservation.ok()) {
    sequence.DropRows();
    return false;
  }
  sequence.reservation = *std::move(reservation);
  waiting_.erase(sequence.key);
  running_.emplace(sequence.key, &sequence);
  Admission admission;
  admission.cached_tokens = cached;
  if (land) admission.landing = OpenLandingFor(sequence, cached);
  sequence.handoff_open = false;
  if (!sequence.admitted_once) {
    CountFirstAdmission(sequence, cached);
    sequence.listener->OnAdmitted(admission);
  }
  if (sequence.request.prefill_only) {
    ReportCached(sequence);
    if (sequence.rows == sequence.total()) Finish(sequence, FinishInfo());
  }
  return true;
}

// Pages for everybody who generates to grow once more: without them a newcomer would soon be
// pre-empted again.
std::int64_t EngineCore::Headroom() const {
  const auto growing = std::count_if(running_.begin(), running_.end(), [](const auto& entry) {
    return !entry.second->request.prefill_only;
  });
  return growing * SequenceTable::PagesFor(1, layers_, kv_heads_);
}

std::vector<PrefixCache::CachedBlock> EngineCore::FindCached(const Sequence& sequence) const {
  if (!options_.prefix_cache) return {};
  const CacheKeys& keys = sequence.request.cache;
  auto found = cache_.Lookup(keys.blocks, keys.exact_space, keys.approx_space);
  // What still has to be scored has to run, whatever is cached.
  const std::int64_t total = sequence.wants_scores() ? sequence.scored : sequence.total();
  std::int32_t usable = UsableCachedTokens(static_cast<std::int64_t>(found.size()), total,
                                           sequence.request.prefill_only);
  // States are only there when a row is computed.
  if (sequence.ReportsStates()) usable = std::min(usable, sequence.reported);
  found.resize(static_cast<std::size_t>(usable / kBlockTokens));
  return found;
}

void EngineCore::AttachCached(Sequence& sequence,
                              const std::vector<PrefixCache::CachedBlock>& found) {
  for (const PrefixCache::CachedBlock& block : found) {
    PrefixCache::AttachBlock(*block.pages, sequence.kv.table);
    sequence.approximate |= block.approximate;
  }
  sequence.stored_blocks = static_cast<std::int32_t>(found.size());
  sequence.rows = sequence.stored_blocks * kBlockTokens;
}

void EngineCore::CountFirstAdmission(Sequence& sequence, std::int32_t cached) {
  sequence.admitted_once = true;
  sequence.admitted_at = Now();
  sequence.cached_tokens = std::min<std::int64_t>(cached, sequence.prompt_size());
  metrics_.prompt_tokens.Increment(static_cast<double>(sequence.prompt_size()));
  metrics_.prefix_queries.Increment(static_cast<double>(sequence.prompt_size()));
  metrics_.prefix_hits.Increment(static_cast<double>(cached));
}

std::shared_ptr<PrefixLanding> EngineCore::OpenLandingFor(Sequence& sequence, std::int32_t cached) {
  OpenLanding& open = sequence.landing.emplace();
  open.begin = cached == 0 ? kSinkTokens : cached;
  open.end = sequence.request.handoff_end;
  sequence.kv.table.EnsureCapacity(open.end, sequence.reservation);
  if (cached == 0) {
    open.sinks = std::make_unique<KvRowsOwner>(layers_, kv_heads_, resources_.pool->layout());
    open.sinks->table.EnsureCapacity(kSinkTokens, sequence.reservation);
    open.sinks_done = false;
  }
  open.run = sequence.request.run;
  if (!open.run.empty()) {
    open.stream =
        std::make_shared<PrefixStream>(open.begin, open.end, resources_.model->config().hidden,
                                       resources_.pool->layout(), sequence.reservation);
  }
  auto landing = std::make_shared<PrefixLanding>();
  landing->run = open.run;
  landing->stream = open.stream;
  landing->layers = layers_;
  landing->kv_heads = kv_heads_;
  landing->begin = open.begin;
  landing->end = open.end;
  landing->first_page = open.begin / kPageRows;
  for (int layer = 0; layer < layers_; ++layer) {
    for (int head = 0; head < kv_heads_; ++head) {
      const auto& refs = sequence.kv.table.refs(layer, head);
      landing->pages.emplace_back(refs.begin() + landing->first_page,
                                  refs.begin() + open.end / kPageRows);
    }
  }
  return landing;
}

void EngineCore::ReportCached(Sequence& sequence) {
  if (sequence.rows <= sequence.reported) return;
  for (int layer = 0; layer < layers_; ++layer) {
    sequence.listener->OnKvReady(
        MakeKvReady(sequence.kv.table, layer, sequence.reported, sequence.rows));
  }
  sequence.reported = sequence.rows;
}

bool EngineCore::CanFree(std::int64_t pages) {
  const std::int64_t short_of = pages - resources_.pool->free_pages();
  if (short_of <= 0 || cache_.EvictablePages(short_of) >= short_of) return true;
  others_may_yield_ = resources_.pool->AskReclaim(short_of, reclaimer_) > 0;
  return false;
}

bool EngineCore::WorthWaiting() {
  if (!others_may_yield_) return false;
  const double now = Now();
  if (short_since_ == 0) short_since_ = now;
  return now - short_since_ < kYieldPatience;
}

bool EngineCore::PreemptFor(const Sequence& head, std::int64_t pages) {
  if (WorthWaiting()) return false;
  const auto may_go = [&head](const Sequence& s) {
    return !s.parked() && s.key.priority < head.key.priority;
  };
  std::int64_t could = resources_.pool->free_pages() + cache_.EvictablePages(pages);
  for (const auto& [key, sequence] : running_) {
    if (!may_go(*sequence)) continue;
    could += sequence->kv.table.total_pages() + sequence->reservation.remaining();
    if (sequence->run) could += sequence->run->stream->pages();
  }
  if (could < pages) return false;
  while (!CanFree(pages)) {
    Sequence* victim = Victim();
    if (victim == nullptr || !may_go(*victim)) return false;
    Preempt(*victim);
  }
  return true;
}

bool EngineCore::MakeFree(std::int64_t pages) {
  if (!CanFree(pages)) return false;
  const std::int64_t short_of = pages - resources_.pool->free_pages();
  if (short_of > 0) cache_.EvictPages(short_of);
  return true;
}

std::vector<Sequence*> EngineCore::Seated() const {
  std::vector<Sequence*> seated;
  for (const auto& [key, sequence] : running_) {
    if (seated.size() == static_cast<std::size_t>(options_.max_running)) break;
    if (!sequence->parked()) seated.push_back(sequence);
  }
  return seated;
}

void EngineCore::GrowDecoding() {
  for (Sequence* sequence : Seated()) {
    sequence->short_of_pages = false;
    if (running_.count(sequence->key) == 0 || !sequence->decoding()) continue;  // pre-empted by now
    while (!Grow(*sequence)) {
      if (WorthWaiting()) {
        sequence->short_of_pages = true;
        break;
      }
      Sequence* victim = Victim();
      Preempt(*victim);
      if (victim == sequence) break;
    }
  }
}

bool EngineCore::Grow(Sequence& sequence) {
  const std::int64_t missing =
      sequence.kv.table.PagesMissingFor(sequence.rows + 1) - sequence.reservation.remaining();
  if (missing <= 0) return true;
  if (!MakeFree(missing) || !sequence.reservation.Grow(missing).ok()) return false;
  short_since_ = 0;
  return true;
}

// The youngest of the lowest priority; null: none. Pages of a parked sequence are in a writer's
// hands, so taking it would free nothing.
Sequence* EngineCore::Victim() {
  const auto it = std::find_if(running_.rbegin(), running_.rend(),
                               [](const auto& entry) { return !entry.second->parked(); });
  return it == running_.rend() ? nullptr : it->second;
}

void EngineCore::Preempt(Sequence& sequence) {
  BATON_RLOG_DEBUG(sequence.request.request_id, "{}: pre-empted at {} rows", options_.name,
                   sequence.rows);
  ++preemptions_;
  metrics_.preemptions.Increment();
  BackToWaiting(sequence);
}

void EngineCore::BackToWaiting(Sequence& sequence) {
  sequence.DropRows();
  Touch(sequence);
  running_.erase(sequence.key);
  waiting_.emplace(sequence.key, &sequence);
}

bool EngineCore::HasWork() const {
  return std::any_of(running_.begin(), running_.end(), [](const auto& entry) {
    return !entry.second->parked() || !entry.second->landing->sinks_done;
  });
}

std::vector<StepSlice> EngineCore::Plan() {
  GrowDecoding();
  std::vector<StepSlice> slices;
  std::vector<StepSlice> runs;
  std::vector<StepSlice> prompts;
  std::vector<PromptDemand> demands;
  bool waits = false;
  for (const auto& [key, sequence] : running_) {
    if (!sequence->parked() || sequence->landing->sinks_done) continue;
    prompts.push_back({.sequence = sequence, .sinks = true});
    demands.push_back({.begin = 0, .end = kSinkTokens, .whole_pages = true});
  }
  for (Sequence* sequence : Seated()) {
    if (sequence->decoding()) {
      if (sequence->short_of_pages) {
        waits = true;
        continue;
      }
      slices.push_back({.sequence = sequence,
                        .begin = sequence->rows,
                        .end = sequence->rows + 1,
                        .samples = true});
    } else if (sequence->run) {
      prompts.push_back({.sequence = sequence, .run = true});
      demands.push_back({.begin = sequence->rows, .end = sequence->run->end});
    } else {
      prompts.push_back({.sequence = sequence});
      demands.push_back({.begin = sequence->rows,
                         .end = sequence->total(),
                         .whole_pages = sequence->request.prefill_only});
    }
  }
  const std::vector<std::int32_t> rows = SplitBudget(demands, options_.step_tokens);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (rows[i] == 0) continue;
    StepSlice& slice = prompts[i];
    slice.begin = demands[i].begin;
    slice.end = slice.begin + rows[i];
    const EngineRequest& request = slice.sequence->request;
    slice.samples = !slice.sinks && !request.prefill_only && request.stop.max_tokens > 0 &&
                    slice.end == slice.sequence->total();
    (slice.run ? runs : slices).push_back(slice);
  }
  slices.insert(slices.end(), runs.begin(), runs.end());
  stalled_ = waits && slices.empty();
  return slices;
}

EngineCore::StepOutcome EngineCore::Step() {
  StepOutcome outcome;
  outcome.slices = Plan();
  if (outcome.slices.empty()) return outcome;
  outcome.status = BATON_FAULT_POINT("engine.step");
  if (!outcome.status.ok()) return outcome;
  for (const StepSlice& slice : outcome.slices) {
    if (slice.sinks) continue;  // their page was taken with the landing
    slice.sequence->kv.table.EnsureCapacity(slice.end, slice.sequence->reservation);
  }
  const double start = Now();
  outcome.results = runner_.Run(outcome.slices);
  const double seconds = Now() - start;
  metrics_.step_seconds.Observe(seconds);
  Commit(outcome.slices, seconds);
  return outcome;
}

void EngineCore::Commit(const std::vector<StepSlice>& slices, double seconds) {
  std::int64_t step_rows = 0;
  for (const StepSlice& slice : slices) step_rows += slice.end - slice.begin;
  for (const StepSlice& slice : slices) {
    Sequence& sequence = *slice.sequence;
    const auto prompt_end =
        static_cast<std::int32_t>(std::min<std::int64_t>(slice.end, sequence.prompt_size()));
    if (slice.run) metrics_.run_tokens.Increment(slice.end - slice.begin);
    if (slice.begin < prompt_end) {
      if (!slice.run) sequence.computed_tokens += prompt_end - slice.begin;
      sequence.prefill_s += seconds * (prompt_end - slice.begin) / static_cast<double>(step_rows);
    }
    if (slice.sinks) {
      sequence.landing->sinks_done = true;
      TakeOverIfComplete(sequence);
      continue;
    }
    sequence.rows = slice.end;
    if (slice.run && slice.end == sequence.run->end) sequence.run.reset();
    sequence.reported = std::max(sequence.reported, slice.end);
    StoreBlocks(sequence);
  }
}

void EngineCore::TakeOverIfComplete(Sequence& sequence) {
  if (!sequence.landing->published || !sequence.landing->sinks_done) return;
  sequence.TakeOverLanding(resources_.pool->layout());
  StoreBlocks(sequence);
}

void EngineCore::StoreBlocks(Sequence& sequence) {
  if (!options_.prefix_cache) return;
  const CacheKeys& keys = sequence.request.cache;
  const std::string& space = sequence.approximate ? keys.approx_space : keys.exact_space;
  const auto complete = static_cast<std::int32_t>(std::min<std::size_t>(
      keys.blocks.size(), static_cast<std::size_t>(sequence.rows) / kBlockTokens));
  for (std::int32_t i = sequence.stored_blocks; i < complete && !space.empty(); ++i) {
    cache_.Insert(keys.blocks[static_cast<std::size_t>(i)], space, i,
                  PrefixCache::BlockPages(sequence.kv.table, i));
  }
  sequence.stored_blocks = std::max(sequence.stored_blocks, complete);
}

void EngineCore::Touch(const Sequence& sequence) {
  const CacheKeys& keys = sequence.request.cache;
  if (options_.prefix_cache) cache_.Touch(keys.blocks, keys.exact_space, keys.approx_space);
}

void EngineCore::Deliver(StepOutcome outcome) {
  for (std::size_t i = 0; i < outcome.slices.size(); ++i) {
    Sequence& sequence = *outcome.slices[i].sequence;
    if (!outcome.status.ok()) {
      Fail(sequence, outcome.status);
      continue;
    }
    const SliceResult& result = outcome.results[i];
    if (!result.status.ok()) {
      Fail(sequence, result.status);
      continue;
    }
    if (sequence.wants_scores()) DeliverScores(sequence, result.prompt);
    if (result.sampled.has_value()) {
      DeliverToken(sequence, *result.sampled);
    } else if (sequence.rows == sequence.total() && sequence.request.prefill_only) {
      Finish(sequence, FinishInfo());
    } else if (sequence.rows == sequence.total() && sequence.request.stop.max_tokens == 0) {
      FinishInfo info;
      info.reason = FinishReason::kLength;
      Finish(sequence, std::move(info));
    }
  }
}

void EngineCore::DeliverScores(Sequence& sequence,
                               const std::vector<std::vector<TokenLogprob>>& scores) {
  TokenDelta delta;
  const auto flush = [&] {
    if (!delta.prompt_logprobs.empty()) {
      sequence.listener->OnTokens(std::exchange(delta, TokenDelta()));
    }
  };
  if (sequence.scored == 0) {
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    delta.prompt_logprobs.push_back(WithBytes({{sequence.tokens[0], kNone}}));
    sequence.scored = 1;
  }
  for (const std::vector<TokenLogprob>& token : scores) {
    delta.prompt_logprobs.push_back(WithBytes(token));
    ++sequence.scored;
    if (delta.prompt_logprobs.size() == kScoresPerDelta) flush();
  }
  flush();
}

std::vector<TokenLogprobEntry> EngineCore::WithBytes(
    const std::vector<TokenLogprob>& tokens) const {
  std::vector<TokenLogprobEntry> entries;
  entries.reserve(tokens.size());
  for (const TokenLogprob& entry : tokens) {
    std::string bytes;
    if (resources_.tokenizer != nullptr) bytes = resources_.tokenizer->TokenBytes(entry.token);
    entries.push_back({entry.token, entry.logprob, std::move(bytes)});
  }
  return entries;
}

void EngineCore::DeliverToken(Sequence& sequence, const SampledToken& sampled) {
  if (sequence.first_token_at == 0) sequence.first_token_at = Now();
  metrics_.generation_tokens.Increment();
  TokenOutcome outcome = sequence.Accept(sampled.token);
  TokenDelta delta;
  delta.text = std::move(outcome.text);
  delta.token_ids = {sampled.token};
  if (!sampled.logprobs.empty()) delta.logprobs.push_back(WithBytes(sampled.logprobs));
  sequence.listener->OnTokens(std::move(delta));
  if (!outcome.finished) return;
  FinishInfo info;
  info.reason = outcome.reason;
  info.stop_text = std::move(outcome.stop_text);
  info.stop_token_id = outcome.stop_token_id;
  Finish(sequence, std::move(info));
}

void EngineCore::Fail(Sequence& sequence, absl::Status status) {
  FinishInfo info;
  info.status = std::move(status);
  info.reason = FinishReason::kError;
  Finish(sequence, std::move(info));
}

void EngineCore::Finish(Sequence& sequence, FinishInfo info) {
  const double now = Now();
  info.prompt_tokens = sequence.prompt_size();
  info.completion_tokens = sequence.generated();
  info.cached_tokens = sequence.cached_tokens;
  info.transferred_tokens = sequence.transferred_tokens;
  info.computed_tokens = sequence.computed_tokens;
  info.queue_s = (sequence.admitted_once ? sequence.admitted_at : now) - sequence.submitted_at;
  info.prefill_s = sequence.prefill_s;
  if (sequence.first_token_at > 0) {
    info.first_token_s = sequence.first_token_at - sequence.submitted_at;
  }
  info.total_s = now - sequence.submitted_at;
  running_.erase(sequence.key);
  waiting_.erase(sequence.key);
  auto node = sequences_.extract(sequence.handle);
  node.mapped()->DropRows();
  Touch(*node.mapped());
  ++finished_;
  const std::shared_ptr<RequestListener> listener = node.mapped()->listener;
  node = {};  // everything is given back before the listener hears
  listener->OnFinished(info);
}

EngineStats EngineCore::GetStats() {
  EngineStats stats;
  stats.running = static_cast<std::int32_t>(running_.size());
  stats.waiting = static_cast<std::int32_t>(waiting_.size());
  stats.cached_blocks = cache_.GetStats().blocks;
  stats.preemptions = preemptions_;
  stats.pool = resources_.pool->GetStats();
  metrics_.running.Set(stats.running);
  metrics_.waiting.Set(stats.waiting);
  metrics_.SetPool(stats.pool);
  return stats;
}

}  // namespace baton
