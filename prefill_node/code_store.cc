#include "prefill_node/code_store.h"

#include <iterator>

namespace baton {

BlockCodes::BlockCodes(const CodeCut& whole) {
  std::size_t bytes = 0;
  for (const CodeCut::Layer& layer : whole.layers) {
    offsets_.push_back(bytes);
    bytes += layer.block_bytes;
  }
  bytes_.resize(bytes);
}

CodeStore::CodeStore(std::int64_t capacity_bytes, MetricRegistry& metrics)
    : capacity_(capacity_bytes),
      queries_(metrics.AddCounter("baton_code_store_queries_tokens_total",
                                  "Tokens whose codes were looked for.")),
      hits_(metrics.AddCounter("baton_code_store_hits_tokens_total",
                               "Tokens whose codes were found.")),
      evictions_(metrics.AddCounter("baton_code_store_evicted_tokens_total",
                                    "Tokens whose codes made room for others.")),
      bytes_gauge_(metrics.AddGaugeCallback("baton_code_store_bytes", "Codes that are kept.",
                                            [this] { return double(bytes()); })) {}

std::vector<std::shared_ptr<const BlockCodes>> CodeStore::Find(absl::Span<const BlockHash> blocks,
                                                               const std::string& space) {
  std::vector<std::shared_ptr<const BlockCodes>> found;
  {
    MutexLock lock(mu_);
    for (const BlockHash& block : blocks) {
      const auto it = index_.find({block, space});
      if (it == index_.end()) break;
      entries_.splice(entries_.begin(), entries_, it->second);
      found.push_back(it->second->codes);
    }
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
}

std::int64_t CodeStore::bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

}  // namespace baton
