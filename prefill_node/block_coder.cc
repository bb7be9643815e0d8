#include "prefill_node/block_coder.h"

#include <algorithm>
#include <utility>

#include "kernels/executor.h"

namespace baton {

BlockCoder::BlockCoder(CodeJob job, CodeStore& store) : job_(std::move(job)), store_(store) {}

void BlockCoder::LookUp() {
  const auto blocks = absl::MakeConstSpan(job_.blocks);
  stored_ = store_.Find(blocks.subspan(static_cast<std::size_t>(job_.first_block)), job_.space,
                        job_.encoder->whole());
}

std::int32_t BlockCoder::next_row() const {
  return static_cast<std::int32_t>(NextBlock()) * kCodeBlockRows;
}

bool BlockCoder::HasLayer(const CodeEncoder& encoder, int layer) {
  return encoder.whole().layers[static_cast<std::size_t>(layer)].block_bytes > 0;
}

bool BlockCoder::Wants(int layer) const {
  return HasLayer(*job_.encoder, layer) ||
         std::any_of(job_.others.begin(), job_.others.end(), [layer](const SpaceEncoder& other) {
           return HasLayer(*other.encoder, layer);
         });
}

std::vector<CodingTurns::Key> BlockCoder::missing() const {
  std::vector<CodingTurns::Key> keys;
  for (std::size_t i = NextBlock(); i < job_.blocks.size(); ++i) {
    keys.emplace_back(job_.blocks[i], job_.turn);
  }
  return keys;
}

void BlockCoder::HoldTurn(std::unique_ptr<CodingTurns::Turn> turn) {
  MutexLock lock(mu_);
  turn_ = std::move(turn);
  blocks_left_ = job_.blocks.size() - NextBlock();
}

void BlockCoder::EndTurn() {
  std::unique_ptr<CodingTurns::Turn> ended;  // destroyed without the lock: it calls those that wait
  {
    MutexLock lock(mu_);
    ended = std::move(turn_);
  }
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

void BlockCoder::EncodeBlock(const CodeEncoder& encoder, const StatesReady& whole, std::int32_t row,
                             BlockCodes& codes) const {
  if (!HasLayer(encoder, whole.layer)) return;
  SerialExecutor executor;
  const int uncoded = std::clamp(job_.uncoded_tokens - row, 0, kCodeBlockRows);
  encoder.Encode(whole.layer, whole.rows.data() + (row - whole.begin) * whole.width, whole.width,
                 uncoded, codes.layer(whole.layer), executor);
}

std::vector<std::shared_ptr<const BlockCodes>> BlockCoder::Encode(const StatesReady& whole) {
  std::vector<std::shared_ptr<const BlockCodes>> blocks;
  for (std::int32_t row = whole.begin; row < whole.end; row += kCodeBlockRows) {
    const std::shared_ptr<BlockCodes> codes = BlockAt(row / kCodeBlockRows).front();
    EncodeBlock(*job_.encoder, whole, row, *codes);
    blocks.push_back(codes);
  }
  return blocks;
}

void BlockCoder::Keep(const StatesReady& whole) {
  for (std::int32_t row = whole.begin; row < whole.end; row += kCodeBlockRows) {
    const std::int32_t index = row / kCodeBlockRows;
    const auto& codes = BlockAt(index);
    for (std::size_t i = 0; i < job_.others.size(); ++i) {
      EncodeBlock(*job_.others[i].encoder, whole, row, *codes[i + 1]);
    }
    LayerDone(index);
  }
}

const std::vector<std::shared_ptr<BlockCodes>>& BlockCoder::BlockAt(std::int32_t index) {
  MutexLock lock(mu_);
  Block& block = coding_[index];
  if (block.codes.empty()) {
    const auto layers = static_cast<int>(job_.encoder->whole().layers.size());
    for (int layer = 0; layer < layers; ++layer) block.layers_left += Wants(layer) ? 1 : 0;
    block.codes.push_back(std::make_shared<BlockCodes>(job_.encoder->whole()));
    for (const SpaceEncoder& other : job_.others) {
      block.codes.push_back(std::make_shared<BlockCodes>(other.encoder->whole()));
    }
  }
  return block.codes;
}

void BlockCoder::LayerDone(std::int32_t index) {
  Block done;
  {
    MutexLock lock(mu_);
    const auto it = coding_.find(index);
    if (--it->second.layers_left > 0) return;
    done = std::move(it->second);
    coding_.erase(it);
  }
  const BlockHash& block = job_.blocks[static_cast<std::size_t>(index)];
  store_.Put(block, job_.space, std::move(done.codes.front()));
  for (std::size_t i = 0; i < job_.others.size(); ++i) {
    store_.Put(block, job_.others[i].space, std::move(done.codes[i + 1]));
  }
  bool last;
  {
    MutexLock lock(mu_);
    last = turn_ != nullptr && --blocks_left_ == 0;
  }
  if (last) EndTurn();
}

}  // namespace baton
