// Codes of prefixes that were prefilled once: a warm prefix costs no forward pass.
//
// Keyed by (block hash, code space), bounded in bytes, least recently used first. What a transfer
// holds stays alive outside the bound until it lets go. Thread-safe.
#pragma once

#include <cstddef>
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

namespace baton {

// Codes of one block of 64 tokens, every layer, all components.
class BlockCodes {
 public:
  explicit BlockCodes(const CodeCut& whole);

  std::byte* layer(int layer) { return bytes_.data() + offsets_[static_cast<std::size_t>(layer)]; }
  const std::byte* layer(int layer) const {
    return bytes_.data() + offsets_[static_cast<std::size_t>(layer)];
  }
  std::size_t bytes() const { return bytes_.size(); }

 private:
  std::vector<std::size_t> offsets_;
  std::vector<std::byte> bytes_;
};

class CodeStore {
 public:
  // 0 keeps nothing.
  CodeStore(std::int64_t capacity_bytes, MetricRegistry& metrics);

  // Of the blocks, as many as are there without a gap from the first on.
  std::vector<std::shared_ptr<const BlockCodes>> Find(absl::Span<const BlockHash> blocks,
                                                      const std::string& space) EXCLUDES(mu_);
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

  const std::int64_t capacity_;
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
