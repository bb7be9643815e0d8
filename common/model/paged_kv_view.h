// The full KV cache of one sequence as a KvView: one segment per head, q is ignored.
#pragma once

#include "common/kv_cache/sequence_table.h"
#include "common/model/kv_view.h"

namespace baton {

class PagedKvView final : public KvView {
 public:
  // `table` must have the capacity for every row that will be appended.
  PagedKvView(SequenceTable& table, const KvPageLayout& layout);
  const KvPageLayout& layout() const override { return layout_; }
  void Append(int layer, const KvRows& rows) override;
  const LayerSegments& Select(int layer, const QueryBlock& q) override;

 private:
  SequenceTable& table_;
  KvPageLayout layout_;
  LayerSegments segments_;
};

}  // namespace baton
