#include "common/engine/sequence.h"

#include <algorithm>
#include <utility>

#include "kernels/kv_write.h"

namespace baton {

Sequence::Sequence(RequestHandle handle, ServiceKey key, EngineRequest request,
                   std::shared_ptr<RequestListener> listener, TextStream text, int layers,
                   int kv_heads, const KvPageLayout& layout)
    : handle(handle),
      key(key),
      request(std::move(request)),
      listener(std::move(listener)),
      tokens(this->request.tokens),
      text(std::move(text)),
      kv(layers, kv_heads, layout),
      reported(this->request.report_from),
      // A request that goes on elsewhere has delivered them.
      scored(this->request.resume_tokens.empty() ? 0 : static_cast<std::int32_t>(tokens.size())),
      handoff_open(this->request.handoff_end > 0) {
  if (NeedsHistory(this->request.sampling)) {
    for (const std::int32_t token : tokens) history.AddPrompt(token);
  }
}

std::int32_t Sequence::RowsToAdmit() const {
  if (request.prefill_only) return total();
  const std::int64_t most = prompt_size() + request.stop.max_tokens;
  return static_cast<std::int32_t>(std::min<std::int64_t>(total() + 1, most));
}

Sequence::TokenRange Sequence::ScoredBy(std::int32_t row_begin, std::int32_t row_end) const {
  if (!wants_scores()) return {};
  // Row i gives the probabilities of token i + 1.
  const std::int32_t begin = std::max({row_begin + 1, scored, std::int32_t{1}});
  const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(row_end + 1, prompt_size()));
  return {begin, std::max(begin, end)};
}

TokenOutcome Sequence::Accept(std::int32_t token) {
  tokens.push_back(token);
  if (NeedsHistory(request.sampling)) history.AddOutput(token);
  TokenOutcome outcome;
  const auto take = [&](TextStream::Piece piece) {
    outcome.text += piece.text;
    if (piece.stopped) {
      outcome.finished = true;
      outcome.reason = FinishReason::kStop;
      outcome.stop_text = request.stop.stop[*piece.stopped];
    }
  };
  if (std::binary_search(end_tokens.begin(), end_tokens.end(), token)) {
    take(text.Finish());
    outcome.finished = true;
    outcome.stop_token_id = token;
    return outcome;
  }
  take(text.Push(token));
  if (!outcome.finished && generated() >= request.stop.max_tokens) {
    outcome.finished = true;
    outcome.reason = FinishReason::kLength;
    take(text.Finish());
  }
  return outcome;
}

void Sequence::DropRows() {
  landing.reset();
  run.reset();
  kv.table.Clear();
  reservation.Release();
  rows = 0;
  stored_blocks = 0;
  approximate = false;
}

void Sequence::TakeOverLanding(const KvPageLayout& layout) {
  SequenceTable& table = kv.table;
  const LayerRun layers = landing->run;
  for (int layer = 0; layer < table.layers(); ++layer) {
    for (int head = 0; head < table.kv_heads(); ++head) {
      if (landing->sinks != nullptr) {
        CopyKvRows(layout, landing->sinks->table.page(layer, head, 0) + layout.k_offset(),
                   table.page(layer, head, 0), 0, kSinkTokens);
      }
      for (std::int32_t row = landing->begin - landing->begin % kPageRows; row < landing->end;
           ++row) {
        std::byte* page = table.page(layer, head, static_cast<std::size_t>(row / kPageRows));
        PagePositions(page)[row % kPageRows] = row;
      }
      table.set_num_rows(layer, head, layers.contains(layer) ? landing->begin : landing->end);
    }
  }
  rows = layers.empty() ? landing->end : landing->begin;
  if (!layers.empty()) run = OpenRun{layers, landing->end, std::move(landing->stream)};
  approximate = true;
  transferred_tokens = landing->end - landing->begin;
  landing.reset();
}

}  // namespace baton
