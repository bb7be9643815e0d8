// Finished K/V of 64-token blocks, shared by page references between the sequences of one model.
//
//   PrefixCache cache(layers, kv_heads);
//   cache.Insert(hashes[0], space, /*depth=*/0, PrefixCache::BlockPages(table, 0));
//   auto match = cache.Lookup(hashes, exact_space, approx_space);
//
// A block is keyed (chained text hash, digest of the space it was computed in) and holds 4 pages
// of every (layer, KV head). Only complete blocks are ever inserted. Eviction is least recently
// used first and, among blocks used together, the end of the chain first, since a block without
// its predecessors can't be found. A block whose pages somebody else also references is pinned.
//
// Threads: owned by the engine's thread; no locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "common/kv_cache/page_pool.h"
#include "common/kv_cache/sequence_table.h"
#include "common/prefix_hash/block_hash.h"

namespace baton {

inline constexpr int kBlockPages = kBlockTokens / kPageRows;

class PrefixCache {
 public:
  struct Stats {
    std::int64_t blocks = 0;
    std::int64_t pages = 0;     // held by the cache, shared or not
    std::int64_t inserted = 0;  // since construction
    std::int64_t evicted = 0;
  };

  struct CachedBlock {
    // [(layer * kv_heads + head) * kBlockPages + i]; valid until the cache is next changed.
    const std::vector<PageRef>* pages = nullptr;
    bool approximate = false;
  };

  PrefixCache(int layers, int kv_heads) : layers_(layers), kv_heads_(kv_heads) {}

  // The longest chain of known blocks from the start of `hashes`. Each is the exact one if there
  // is one, else the approximate one if `approx_space` is not empty. Changes no recency.
  std::vector<CachedBlock> Lookup(std::span<const BlockHash> hashes, std::string_view exact_space,
                                  std::string_view approx_space) const;

  // Adds a block at `depth` blocks from the start of its chain. False when it is there already
  // (the old one stays). `pages` as in CachedBlock.
  bool Insert(const BlockHash& hash, std::string_view space, std::int32_t depth,
              std::vector<PageRef> pages);

  // Marks the chain as used now.
  void Touch(std::span<const BlockHash> hashes, std::string_view exact_space,
             std::string_view approx_space);

  // Pages that EvictPages could free now; stops counting at `enough`.
  std::int64_t EvictablePages(std::int64_t enough) const;
  // Drops unpinned blocks until `pages` pages went back to the pool or none is left. Returns the
  // pages really freed.
  std::int64_t EvictPages(std::int64_t pages);
  // Drops all unpinned blocks.
  void Clear();

  Stats GetStats() const;

  // References to the pages of block `block` of a table.
  static std::vector<PageRef> BlockPages(const SequenceTable& table, std::int32_t block);
  // Appends a block to a table and counts its rows. The table must end at a block boundary.
  static void AttachBlock(const std::vector<PageRef>& pages, SequenceTable& table);

 private:
  struct Key {
    BlockHash hash;
    std::uint32_t space = 0;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      return std::hash<BlockHash>()(key.hash) ^ (key.space * std::size_t{0x9E3779B97F4A7C15});
    }
  };
  struct Entry {
    Key key;
    std::vector<PageRef> pages;
    std::uint64_t used = 0;
    std::int32_t depth = 0;
    std::uint64_t serial = 0;  // breaks ties
  };
  // First in order is evicted first: oldest use, then deepest.
  struct Older {
    bool operator()(const Entry* a, const Entry* b) const {
      return std::make_tuple(a->used, -a->depth, a->serial) <
             std::make_tuple(b->used, -b->depth, b->serial);
    }
  };

  const Entry* Find(const BlockHash& hash, std::string_view space) const;
  void Use(const Entry* entry);
  static bool Pinned(const Entry& entry);

  const int layers_;
  const int kv_heads_;
  std::map<std::string, std::uint32_t, std::less<>> spaces_;  // digests as small numbers
  std::unordered_map<Key, Entry, KeyHash> entries_;           // node based: addresses are stable
  std::set<Entry*, Older> order_;
  std::uint64_t clock_ = 0;
  std::uint64_t serial_ = 0;
  std::int64_t evicted_ = 0;
};

}  // namespace baton
