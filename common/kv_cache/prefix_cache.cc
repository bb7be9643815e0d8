#include "common/kv_cache/prefix_cache.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

namespace baton {

const PrefixCache::Entry* PrefixCache::Find(const BlockHash& hash, std::string_view space) const {
  if (space.empty()) return nullptr;
  const auto id = spaces_.find(space);
  if (id == spaces_.end()) return nullptr;
  const auto it = entries_.find(Key{hash, id->second});
  return it == entries_.end() ? nullptr : &it->second;
}

std::vector<PrefixCache::CachedBlock> PrefixCache::Lookup(std::span<const BlockHash> hashes,
                                                          std::string_view exact_space,
                                                          std::string_view approx_space) const {
  std::vector<CachedBlock> blocks;
  for (const BlockHash& hash : hashes) {
    const Entry* entry = Find(hash, exact_space);
    const bool approximate = entry == nullptr;
    if (approximate) entry = Find(hash, approx_space);
    if (entry == nullptr) break;
    blocks.push_back({&entry->pages, approximate});
  }
  return blocks;
}

bool PrefixCache::Insert(const BlockHash& hash, std::string_view space, std::int32_t depth,
                         std::vector<PageRef> pages) {
  assert(pages.size() == static_cast<std::size_t>(layers_) * kv_heads_ * kBlockPages);
  assert(!space.empty());
  const auto id =
      spaces_.try_emplace(std::string(space), static_cast<std::uint32_t>(spaces_.size()));
  const Key key{hash, id.first->second};
  const auto [it, added] = entries_.try_emplace(key);
  if (!added) return false;
  Entry& entry = it->second;
  entry.key = key;
  entry.pages = std::move(pages);
  entry.used = clock_;
  entry.depth = depth;
  entry.serial = serial_++;
  order_.insert(&entry);
  return true;
}

void PrefixCache::Use(const Entry* entry) {
  // The map owns the entry; only its place in the order changes.
  Entry* mine = &entries_.find(entry->key)->second;
  order_.erase(mine);
  mine->used = clock_;
  order_.insert(mine);
}

void PrefixCache::Touch(std::span<const BlockHash> hashes, std::string_view exact_space,
                        std::string_view approx_space) {
  ++clock_;
  for (const BlockHash& hash : hashes) {
    const Entry* exact = Find(hash, exact_space);
    const Entry* approx = Find(hash, approx_space);
    if (exact != nullptr) {
      Use(exact);
    } else if (approx != nullptr) {
      Use(approx);
    } else {
      break;
    }
  }
}

bool PrefixCache::Pinned(const Entry& entry) {
  return std::any_of(entry.pages.begin(), entry.pages.end(),
                     [](const PageRef& page) { return page.use_count() > 1; });
}

std::int64_t PrefixCache::EvictablePages(std::int64_t enough) const {
  std::int64_t pages = 0;
  for (auto it = order_.begin(); it != order_.end() && pages < enough; ++it) {
    if (!Pinned(**it)) pages += static_cast<std::int64_t>((*it)->pages.size());
  }
  return pages;
}

std::int64_t PrefixCache::EvictPages(std::int64_t pages) {
  std::int64_t freed = 0;
  for (auto it = order_.begin(); it != order_.end() && freed < pages;) {
    Entry* entry = *it;
    if (Pinned(*entry)) {
      ++it;
      continue;
    }
    it = order_.erase(it);
    freed += static_cast<std::int64_t>(entry->pages.size());
    ++evicted_;
    const Key key = entry->key;  // the argument of erase must not live in what is erased
    entries_.erase(key);
  }
  return freed;
}

void PrefixCache::Clear() { EvictPages(std::numeric_limits<std::int64_t>::max()); }

PrefixCache::Stats PrefixCache::GetStats() const {
  Stats stats;
  stats.blocks = static_cast<std::int64_t>(entries_.size());
  stats.pages = stats.blocks * layers_ * kv_heads_ * kBlockPages;
  stats.inserted = static_cast<std::int64_t>(serial_);
  stats.evicted = evicted_;
  return stats;
}

std::vector<PageRef> PrefixCache::BlockPages(const SequenceTable& table, std::int32_t block) {
  std::vector<PageRef> pages;
  pages.reserve(static_cast<std::size_t>(table.layers()) * table.kv_heads() * kBlockPages);
  for (int layer = 0; layer < table.layers(); ++layer) {
    for (int head = 0; head < table.kv_heads(); ++head) {
      const auto& refs = table.refs(layer, head);
      for (int i = 0; i < kBlockPages; ++i) {
        pages.push_back(refs[static_cast<std::size_t>(block) * kBlockPages + i]);
      }
    }
  }
  return pages;
}

void PrefixCache::AttachBlock(const std::vector<PageRef>& pages, SequenceTable& table) {
  std::size_t next = 0;
  for (int layer = 0; layer < table.layers(); ++layer) {
    for (int head = 0; head < table.kv_heads(); ++head) {
      for (int i = 0; i < kBlockPages; ++i) table.PushPage(layer, head, pages[next++]);
      table.set_num_rows(layer, head, table.num_rows(layer, head) + kBlockTokens);
    }
  }
}

}  // namespace baton
