// From a transfer's states, layer by layer and in chunks of any length, to its blocks' codes.
//
//   StatesReady whole = coder.WholeBlocks(states);   // engine's thread
//   auto blocks = coder.Encode(whole);               // a worker; layers beside each other
//
// A block whose layers are all encoded goes into the store.
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
#include "prefill_node/code_store.h"

namespace baton {

// Which codes a transfer sends.
struct CodeJob {
  std::shared_ptr<const CodeEncoder> encoder;
  CodeCut cut;
  std::string space;                // of the codes in the store
  std::vector<BlockHash> blocks;    // of the whole prefix
  std::int32_t first_block = 0;     // the first that travels
  std::int32_t uncoded_tokens = 0;  // the first of them are of no use to anybody (see sinks)
};

class BlockCoder {
 public:
  BlockCoder(CodeJob job, CodeStore& store);

  const CodeJob& job() const { return job_; }
  // From first_block on, as many as the store had when this was made.
  const std::vector<std::shared_ptr<const BlockCodes>>& stored() const { return stored_; }
  // First row whose states are needed.
  std::int32_t next_row() const;

  // Rows of whole blocks, with what waited of their layer; the rest waits. One thread only.
  StatesReady WholeBlocks(StatesReady states);
  // Codes of the layer in `whole`, which holds nothing but whole blocks. Thread-safe.
  std::vector<std::shared_ptr<const BlockCodes>> Encode(const StatesReady& whole) EXCLUDES(mu_);

 private:
  struct Block {
    std::shared_ptr<BlockCodes> codes;
    std::size_t layers_left = 0;
  };
  std::shared_ptr<BlockCodes> BlockAt(std::int32_t index) EXCLUDES(mu_);
  void LayerDone(std::int32_t index) EXCLUDES(mu_);

  const CodeJob job_;
  CodeStore& store_;
  const std::vector<std::shared_ptr<const BlockCodes>> stored_;
  std::map<int, StatesReady> waiting_;  // by layer: rows of a block that is not whole
  Mutex mu_;
  std::map<std::int32_t, Block> coding_ GUARDED_BY(mu_);  // by index in the prefix
};

}  // namespace baton
