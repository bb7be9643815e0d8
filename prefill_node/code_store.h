// Codes of prefixes that were prefilled once: a warm prefix costs no forward pass.
//
// Keyed by (block hash, code space), bounded in bytes, least recently used first. What a transfer
// holds stays alive outside the bound until it lets go. What leaves memory goes on into the spill,
// where there is one, and comes back from there when it is looked for. Thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/prefix_hash/block_hash.h"
#include "common/scd/code_cut.h"
#include "prefill_node/block_codes.h"
#include "prefill_node/code_spill.h"

namespace baton {

class CodeStore {
 public:
  using Found = std::vector<std::shared_ptr<const BlockCodes>>;

  // 0 keeps nothing. A null `spill`: what leaves memory is forgotten.
  CodeStore(std::int64_t capacity_bytes, MetricRegistry& metrics,
            std::unique_ptr<CodeSpill> spill = nullptr);

  // Of the blocks, as many as are there without a gap from the first on. `whole` is the space's.
  // Waits for the disk when reads_files().
  Found Find(absl::Span<const BlockHash> blocks, const std::string& space, const CodeCut& whole)
      EXCLUDES(mu_);
  bool reads_files() const { return spill_ != nullptr; }
  // The first of two codes of a block stays.
  void Put(const BlockHash& block, const std::string& space,
           std::shared_ptr<const BlockCodes> codes) EXCLUDES(mu_);

  std::int64_t bytes() const EXCLUDES(mu_);

 private:
  using Key = std::pair<BlockHash, std::string>;
  struct HashKey {
    std::size_t operator()(const Key& key) const { return absl::HashOf(key); }
  };
  struct Entry {
    Key key;
    std::shared_ptr<const BlockCodes> codes;
  };

  // Appends what follows in `blocks` without a gap.
  void FindInMemory(absl::Span<const BlockHash> blocks, const std::string& space, Found& found)
      EXCLUDES(mu_);

  const std::int64_t capacity_;
  const std::unique_ptr<CodeSpill> spill_;
  mutable Mutex mu_;
  std::list<Entry> entries_ GUARDED_BY(mu_);  // the latest used first
  std::unordered_map<Key, std::list<Entry>::iterator, HashKey> index_ GUARDED_BY(mu_);
  std::int64_t bytes_ GUARDED_BY(mu_) = 0;
  Counter queries_;
  Counter hits_;
  Counter evictions_;
  GaugeCallback bytes_gauge_;
};

}  // namespace baton
