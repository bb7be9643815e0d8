// One admitted or waiting request, as the engine's thread sees it. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/request.h"
#include "common/engine/sampler.h"
#include "common/engine/scheduler.h"
#include "common/engine/text_stream.h"
#include "common/kv_cache/page_pool.h"
#include "common/kv_cache/sequence_table.h"
#include "common/model/paged_kv_view.h"

namespace baton {

// Pages with a view of them. The view refers to the table, so this stays where it is.
struct KvRowsOwner {
  KvRowsOwner(int layers, int kv_heads, const KvPageLayout& layout)
      : table(layers, kv_heads), view(table, layout) {}
  KvRowsOwner(const KvRowsOwner&) = delete;
  KvRowsOwner& operator=(const KvRowsOwner&) = delete;

  SequenceTable table;
  PagedKvView view;
};

// The part of a hand-off that is still open.
struct OpenLanding {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  // Exact rows 0..3, in pages of their own: nobody reads or writes the landing's pages while a
  // worker fills them. Null when the cache had the first block.
  std::unique_ptr<KvRowsOwner> sinks;
  bool sinks_done = true;
  bool published = false;
  LayerRun run;
  std::shared_ptr<PrefixStream> stream;  // of the landing; null without a run
};

// Layers of a landed prefix that are still computed here, from the stream that landed.
// Sequence::rows says how far: rows beyond it are in the other layers only.
struct OpenRun {
  LayerRun layers;
  std::int32_t end = 0;  // of the landed rows
  std::shared_ptr<const PrefixStream> stream;
};

// What a token did to its sequence.
struct TokenOutcome {
  std::string text;
  bool finished = false;
  FinishReason reason = FinishReason::kStop;
  std::string stop_text;
  std::int32_t stop_token_id = -1;
};

struct Sequence {
  Sequence(RequestHandle handle, ServiceKey key, EngineRequest request,
           std::shared_ptr<RequestListener> listener, TextStream text, int layers, int kv_heads,
           const KvPageLayout& layout);

  std::int64_t prompt_size() const { return static_cast<std::int64_t>(request.tokens.size()); }
  std::int64_t generated() const {
    return static_cast<std::int64_t>(tokens.size()) - prompt_size();
  }
  bool parked() const { return landing.has_value(); }
  bool ReportsStates() const {
    return request.prefill_only && request.report != ReportedStates::kPages;
  }
  std::int32_t total() const { return static_cast<std::int32_t>(tokens.size()); }
  // Some log-probabilities of the prompt are still to be delivered.
  bool wants_scores() const {
    return request.sampling.prompt_logprobs && !request.prefill_only && scored < prompt_size();
  }
  // Prompt tokens whose log-probabilities these rows give and that are wanted.
  struct TokenRange {
    std::int32_t begin = 0;
    std::int32_t end = 0;
  };
  TokenRange ScoredBy(std::int32_t row_begin, std::int32_t row_end) const;
  // The one row of a sequence that generates.
  bool decoding() const { return generated() > 0 && rows + 1 == total(); }
  // Rows the reservation at admission covers: what is known plus one token, so that every
  // admission makes progress.
  std::int32_t RowsToAdmit() const;
  // Appends a generated token: text, history, and whether it was the last.
  TokenOutcome Accept(std::int32_t token);
  // Gives all pages back; the text and the sampler's state stay.
  void DropRows();
  // The sink rows into the landing's first page, positions of all landed rows, row counts; what
  // landed for a run waits for it.
  void TakeOverLanding(const KvPageLayout& layout);

  const RequestHandle handle;
  const ServiceKey key;
  const EngineRequest request;
  const std::shared_ptr<RequestListener> listener;
  std::uint64_t seed = 0;

  std::vector<std::int32_t> tokens;  // prompt, then output
  TextStream text;
  TokenHistory history;
  std::vector<std::int32_t> end_tokens;  // eos and stop tokens, sorted

  KvRowsOwner kv;
  Reservation reservation;
  std::int32_t rows = 0;           // tokens whose K and V are in the table, of all layers
  std::int32_t stored_blocks = 0;  // leading blocks that are in the prefix cache or were offered
  bool approximate = false;        // some row came from elsewhere
  std::optional<OpenLanding> landing;
  std::optional<OpenRun> run;
  std::int32_t reported = 0;  // prefill_only: tokens already reported
  std::int32_t scored = 0;    // prompt tokens whose log-probabilities were delivered
  bool admitted_once = false;
  bool short_of_pages = false;  // sits this step out: pages are about to come
  bool handoff_open = false;    // a landing is still wanted at the next admission

  // For FinishInfo.
  double submitted_at = 0;
  double admitted_at = 0;
  double first_token_at = 0;
  double prefill_s = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t transferred_tokens = 0;
  std::int64_t computed_tokens = 0;
};

}  // namespace baton
