// What goes into an engine and what comes out of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/engine/prefix_stream.h"
#include "common/kv_cache/page_pool.h"
#include "common/prefix_hash/block_hash.h"
#include "common/sampling/sampling_params.h"
#include "common/weights/layer_run.h"

namespace baton {

// Names a submitted request within its engine.
using RequestHandle = std::uint64_t;

// Keys for the prefix cache. Blocks computed by the consumer itself over an exact prefix are
// stored under `exact_space`; blocks that came from elsewhere, and all that follow them, under
// `approx_space` (fidelity is inherited). Reads accept exact blocks always, approximate ones only
// if `approx_space` is set.
struct CacheKeys {
  std::vector<BlockHash> blocks;  // one per full 64-token block of the prompt; empty: no caching
  std::string exact_space;        // digest of the native space, fidelity "exact"
  std::string approx_space;       // digest with the hand-off's fidelity; empty: not accepted
};

// What a producer reports of each layer (see CaptureHook): pages as they are stored, or the states
// that codes are made of, which no cache holds.
enum class ReportedStates {
  kPages,      // through OnKvReady
  kHidden,     // through OnStates: the normalised attention input before gamma, then what it was
               // divided by, [hidden + 1]
  kKv,         // through OnStates: [K | V], K after k-norm, before RoPE
  kAroundRun,  // layers outside EngineRequest::run as kPages, its first layer as kHidden
};

struct EngineRequest {
  std::string request_id;
  std::vector<std::int32_t> tokens;  // prompt, not empty
  // Already generated and delivered elsewhere (replay): not emitted again, but they count for
  // max_tokens, penalties, random numbers and stop strings.
  std::vector<std::int32_t> resume_tokens;
  int adapter = -1;  // index into the AdapterSet; -1: none
  SamplingParams sampling;
  StopParams stop;
  std::vector<std::int32_t> eos_token_ids;  // end generation unless stop.ignore_eos
  int priority = 0;                         // higher first
  CacheKeys cache;
  // Tokens [max(4, cached), handoff_end) will be delivered through a PrefixLanding; a multiple of
  // 16; 0: everything is computed here. Needs end < tokens.size().
  std::int32_t handoff_end = 0;
  // With handoff_end: layers of which no K and V are delivered but the stream that enters the first
  // of them, from which they are computed here. With kAroundRun: those that a consumer will run.
  LayerRun run;
  // Producer mode: compute K/V of all tokens, report each layer, generate nothing.
  bool prefill_only = false;
  ReportedStates report = ReportedStates::kPages;
  std::int32_t report_from = 0;  // prefill_only: first token to report, multiple of 16
};

// Reserved, unpublished pages for a prefix that arrives from elsewhere. Workers write K and V of
// rows [begin, end) of every (layer, head), not the positions, and then call
// Engine::PublishPrefix. Nobody else touches these pages before that. Holding the landing holds the
// pages: an aborted request's pages are not reused before the writer lets go.
//
// With a `run`, workers leave its layers' pages alone and write the residual stream that enters the
// first of them, rows [begin, end) of `stream`; the engine computes these layers once all is
// published.
struct PrefixLanding {
  int layers = 0;
  int kv_heads = 0;
  std::int32_t begin = 0;                   // first token to write
  std::int32_t end = 0;                     // one past the last, multiple of 16
  std::int32_t first_page = 0;              // page index of pages[..][0]
  std::vector<std::vector<PageRef>> pages;  // [layer * kv_heads + head][page - first_page]
  LayerRun run;
  std::shared_ptr<PrefixStream> stream;  // null without a run
};

// Pages of one layer that hold rows [begin, end), for a sender. The references keep them alive.
struct KvReady {
  int layer = 0;
  std::int32_t begin = 0;  // multiple of 16
  std::int32_t end = 0;
  std::vector<std::vector<PageRef>> pages;  // [kv_head][page], first page holds row `begin`
};

// States of rows [begin, end) of one layer, copied.
struct StatesReady {
  int layer = 0;
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int64_t width = 0;
  std::vector<float> rows;  // [end - begin, width]
};

struct Admission {
  std::int32_t cached_tokens = 0;          // found in the prefix cache
  std::shared_ptr<PrefixLanding> landing;  // null: nothing needs to arrive
};

struct TokenLogprobEntry {
  std::int32_t token_id = 0;
  float logprob = 0;  // NaN: the first token of a prompt, which has none
  std::string bytes;  // the token's own; may be part of a character
};

struct TokenDelta {
  std::string text;  // whole characters only; may be empty
  std::vector<std::int32_t> token_ids;
  // Per token: the chosen one first, then the top_logprobs most likely ones (the chosen one again
  // if it is among them). Empty unless asked for.
  std::vector<std::vector<TokenLogprobEntry>> logprobs;
  // The same of the prompt's next tokens, in order and each once; in deltas before the first token.
  std::vector<std::vector<TokenLogprobEntry>> prompt_logprobs;
};

enum class FinishReason { kStop, kLength, kCancelled, kError };

struct FinishInfo {
  absl::Status status;  // not OK: reason is kCancelled or kError
  FinishReason reason = FinishReason::kStop;
  std::string stop_text;            // the stop string found; never part of the text
  std::int32_t stop_token_id = -1;  // eos or stop token that ended it; counted, no text
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;  // generated, resumed ones included
  std::int64_t cached_tokens = 0;
  std::int64_t transferred_tokens = 0;  // delivered through a landing
  // Prompt rows this engine ran through all layers, recomputed too. Rows of a run are among the
  // transferred ones only.
  std::int64_t computed_tokens = 0;
  double queue_s = 0;        // submit to admission
  double prefill_s = 0;      // own part (by rows) of the steps with its prompt or run
  double first_token_s = 0;  // submit to first token; 0: none
  double total_s = 0;
};

// Called on the engine's thread, in order; must return at once (enqueue, don't wait).
class RequestListener {
 public:
  virtual ~RequestListener() = default;
  // Memory is reserved and the cache was asked. Exactly once before anything else but OnFinished.
  virtual void OnAdmitted(const Admission& admission) {}
  virtual void OnKvReady(KvReady ready) {}
  virtual void OnStates(StatesReady states) {}
  virtual void OnTokens(TokenDelta delta) {}
  // Exactly once, last. All memory of the request but its landing is given back by then.
  virtual void OnFinished(const FinishInfo& info) = 0;
};

}  // namespace baton
