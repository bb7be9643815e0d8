// From a transfer's states, layer by layer and in chunks of any length, to its blocks' codes.
//
//   BlockCoder coder(job, store);
//   coder.LookUp();                                  // what the store has
//   StatesReady whole = coder.WholeBlocks(states);   // engine's thread
//   auto blocks = coder.Encode(whole);               // a worker; layers beside each other
//   coder.Keep(whole);                               // after they are on their way
//
// A block whose layers are all encoded goes into the store, in the codes of every encoder. Layers
// that a consumer runs itself have no codes (LayerKind::kNative): nothing is made or waited for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/engine/request.h"
#include "common/prefix_hash/block_hash.h"
#include "common/scd/encoder.h"
#include "prefill_node/block_codes.h"
#include "prefill_node/code_store.h"
#include "prefill_node/coding_turns.h"

namespace baton {

// An encoder, and what its codes are called in the store.
struct SpaceEncoder {
  std::shared_ptr<const CodeEncoder> encoder;
  std::string space;
};

// Which codes a transfer sends.
struct CodeJob : SpaceEncoder {
  CodeCut cut;
  // Of the same states; their codes are made on the way, for who asks for them next.
  std::vector<SpaceEncoder> others;
  std::string turn;               // the same for transfers of which one makes what the others need
  std::vector<BlockHash> blocks;  // of the whole prefix
  std::int32_t first_block = 0;   // the first that travels
  std::int32_t uncoded_tokens = 0;  // the first of them are of no use to anybody (see sinks)
};

class BlockCoder {
 public:
  BlockCoder(CodeJob job, CodeStore& store);

  const CodeJob& job() const { return job_; }
  // Looks for the blocks in the store, whose files it may wait for; not once encoding has begun.
  void LookUp();
  // From first_block on, as many as the store had then; none before LookUp.
  const std::vector<std::shared_ptr<const BlockCodes>>& stored() const { return stored_; }
  // First row whose states are needed.
  std::int32_t next_row() const;
  bool all_stored() const { return NextBlock() == job_.blocks.size(); }
  // Whether some encoder has codes of this layer. States of others are of no use.
  bool Wants(int layer) const;
  // The blocks that the store lacked.
  std::vector<CodingTurns::Key> missing() const;

  // Held until every block is kept, or EndTurn.
  void HoldTurn(std::unique_ptr<CodingTurns::Turn> turn) EXCLUDES(mu_);
  void EndTurn() EXCLUDES(mu_);

  // Rows of whole blocks, with what waited of their layer; the rest waits. One thread only.
  StatesReady WholeBlocks(StatesReady states);
  // Codes of the layer in `whole`, which holds nothing but whole blocks; the job's own encoder may
  // have none of them. Thread-safe.
  std::vector<std::shared_ptr<const BlockCodes>> Encode(const StatesReady& whole) EXCLUDES(mu_);
  // After Encode of the same rows: their codes by the other encoders, and whole blocks into the
  // store. Thread-safe.
  void Keep(const StatesReady& whole) EXCLUDES(mu_);

 private:
  struct Block {
    std::vector<std::shared_ptr<BlockCodes>> codes;  // of the job's own encoder, then of the others
    std::size_t layers_left = 0;
  };
  std::size_t NextBlock() const {
    return static_cast<std::size_t>(job_.first_block) + stored_.size();
  }
  // The codes of a block, which stay where they are until the last layer of it is done.
  const std::vector<std::shared_ptr<BlockCodes>>& BlockAt(std::int32_t index) EXCLUDES(mu_);
  static bool HasLayer(const CodeEncoder& encoder, int layer);
  void EncodeBlock(const CodeEncoder& encoder, const StatesReady& whole, std::int32_t row,
                   BlockCodes& codes) const;
  void LayerDone(std::int32_t index) EXCLUDES(mu_);

  const CodeJob job_;
  CodeStore& store_;
  std::vector<std::shared_ptr<const BlockCodes>> stored_;
  std::map<int, StatesReady> waiting_;  // by layer: rows of a block that is not whole
  Mutex mu_;
  std::map<std::int32_t, Block> coding_ GUARDED_BY(mu_);  // by index in the prefix
  std::size_t blocks_left_ GUARDED_BY(mu_) = 0;           // to keep, while there is a turn
  std::unique_ptr<CodingTurns::Turn> turn_ GUARDED_BY(mu_);
};

}  // namespace baton
