#include "prefill_node/block_coder.h"

#include <algorithm>
#include <utility>

#include "kernels/executor.h"

namespace baton {

BlockCoder::BlockCoder(CodeJob job, CodeStore& store)
    : job_(std::move(job)),
      store_(store),
      stored_(store.Find(
          absl::MakeConstSpan(job_.blocks).subspan(static_cast<std::size_t>(job_.first_block)),
          job_.space)) {}

std::int32_t BlockCoder::next_row() const {
  return (job_.first_block + static_cast<std::int32_t>(stored_.size())) * kCodeBlockRows;
}

StatesReady BlockCoder::WholeBlocks(StatesReady states) {
  if (auto waited = waiting_.extract(states.layer)) {
    StatesReady& first = waited.mapped();
    first.rows.insert(first.rows.end(), states.rows.begin(), states.rows.end());
    first.end = states.end;
    states = std::move(first);
  }
  const std::int32_t whole_end = states.end / kCodeBlockRows * kCodeBlockRows;
  if (whole_end < states.end) {
    const std::int32_t rest_begin = std::max(whole_end, states.begin);
    StatesReady rest{states.layer, rest_begin, states.end, states.width, {}};
    const auto from = states.rows.begin() +
                      static_cast<std::ptrdiff_t>((rest_begin - states.begin) * states.width);
    rest.rows.assign(from, states.rows.end());
    states.rows.erase(from, states.rows.end());
    states.end = rest_begin;
    waiting_[states.layer] = std::move(rest);
  }
  return states;
}

std::vector<std::shared_ptr<const BlockCodes>> BlockCoder::Encode(const StatesReady& whole) {
  std::vector<std::shared_ptr<const BlockCodes>> blocks;
  SerialExecutor executor;
  for (std::int32_t row = whole.begin; row < whole.end; row += kCodeBlockRows) {
    const std::int32_t index = row / kCodeBlockRows;
    const std::shared_ptr<BlockCodes> codes = BlockAt(index);
    const int uncoded = std::clamp(job_.uncoded_tokens - row, 0, kCodeBlockRows);
    job_.encoder->Encode(whole.layer, whole.rows.data() + (row - whole.begin) * whole.width,
                         whole.width, uncoded, codes->layer(whole.layer), executor);
    LayerDone(index);
    blocks.push_back(codes);
  }
  return blocks;
}

std::shared_ptr<BlockCodes> BlockCoder::BlockAt(std::int32_t index) {
  const CodeCut& whole = job_.encoder->whole();
  MutexLock lock(mu_);
  Block& block = coding_[index];
  if (!block.codes) block = {std::make_shared<BlockCodes>(whole), whole.layers.size()};
  return block.codes;
}

void BlockCoder::LayerDone(std::int32_t index) {
  std::shared_ptr<const BlockCodes> done;
  {
    MutexLock lock(mu_);
    const auto it = coding_.find(index);
    if (--it->second.layers_left > 0) return;
    done = std::move(it->second.codes);
    coding_.erase(it);
  }
  store_.Put(job_.blocks[static_cast<std::size_t>(index)], job_.space, std::move(done));
}

}  // namespace baton
