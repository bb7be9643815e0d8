#include "prefill_node/code_store.h"

#include <iterator>
#include <utility>

namespace baton {

CodeStore::CodeStore(std::int64_t capacity_bytes, MetricRegistry& metrics,
                     std::unique_ptr<CodeSpill> spill)
    : capacity_(capacity_bytes),
      spill_(std::move(spill)),
      queries_(metrics.AddCounter("baton_code_store_queries_tokens_total",
                                  "Tokens whose codes were looked for.")),
      hits_(metrics.AddCounter("baton_code_store_hits_tokens_total",
                               "Tokens whose codes were found.")),
      evictions_(metrics.AddCounter("baton_code_store_evicted_tokens_total",
                                    "Tokens whose codes made room for others.")),
      bytes_gauge_(metrics.AddGaugeCallback("baton_code_store_bytes", "Codes that are kept.",
                                            [this] { return double(bytes()); })) {}

void CodeStore::FindInMemory(absl::Span<const BlockHash> blocks, const std::string& space,
                             Found& found) {
  MutexLock lock(mu_);
  for (const BlockHash& block : blocks.subspan(found.size())) {
    const auto it = index_.find({block, space});
    if (it == index_.end()) return;
    entries_.splice(entries_.begin(), entries_, it->second);
    found.push_back(it->second->codes);
  }
}

CodeStore::Found CodeStore::Find(absl::Span<const BlockHash> blocks, const std::string& space,
                                 const CodeCut& whole) {
  Found found;
  FindInMemory(blocks, space, found);
  while (spill_ && found.size() < blocks.size()) {
    const BlockHash& block = blocks[found.size()];
    auto codes = spill_->Find(block, space, whole);
    if (!codes) break;
    Put(block, space, codes);
    found.push_back(std::move(codes));
    FindInMemory(blocks, space, found);
  }
  queries_.Increment(static_cast<double>(blocks.size()) * kCodeBlockRows);
  hits_.Increment(static_cast<double>(found.size()) * kCodeBlockRows);
  return found;
}

void CodeStore::Put(const BlockHash& block, const std::string& space,
                    std::shared_ptr<const BlockCodes> codes) {
  const auto size = static_cast<std::int64_t>(codes->bytes());
  if (size > capacity_) return;
  std::list<Entry> dropped;  // freed outside the lock
  {
    MutexLock lock(mu_);
    const Key key(block, space);
    if (index_.contains(key)) return;
    entries_.push_front({key, std::move(codes)});
    index_[key] = entries_.begin();
    bytes_ += size;
    while (bytes_ > capacity_) {
      const auto last = std::prev(entries_.end());
      bytes_ -= static_cast<std::int64_t>(last->codes->bytes());
      index_.erase(last->key);
      dropped.splice(dropped.begin(), entries_, last);
    }
  }
  evictions_.Increment(static_cast<double>(dropped.size()) * kCodeBlockRows);
  if (!spill_) return;
  for (Entry& entry : dropped) {
    spill_->Put(entry.key.first, entry.key.second, std::move(entry.codes));
  }
}

std::int64_t CodeStore::bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

}  // namespace baton
