// One sequence with a KV cache of its own: what tools and tests need to run a model directly.
//
//   BATON_ASSIGN_OR_RETURN(auto sequence, SingleSequence::Create(config, DType::kF32, 1024));
//   pass.RunLayers(0, config.layers, h, {.positions = p, .sequences = {slice of sequence->view()}},
//                  nullptr);
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/kv_cache/page_pool.h"
#include "common/kv_cache/sequence_table.h"
#include "common/model/paged_kv_view.h"
#include "common/weights/model_config.h"

namespace baton {

class SingleSequence {
 public:
  // A pool of exactly the pages that `max_rows` rows need. RESOURCE_EXHAUSTED when the memory
  // cannot be had.
  static absl::StatusOr<std::unique_ptr<SingleSequence>> Create(const ModelConfig& config,
                                                                DType kv_dtype,
                                                                std::int32_t max_rows);

  KvView& view() { return view_; }
  SequenceTable& table() { return table_; }
  const KvPageLayout& layout() const { return pool_->layout(); }
  // Rows stored so far (of the first layer and head).
  std::int32_t size() const { return table_.num_rows(0, 0); }
  // Forgets every row; the pages stay.
  void Rewind();

 private:
  SingleSequence(std::shared_ptr<PagePool> pool, int layers, int kv_heads);
  std::shared_ptr<PagePool> pool_;
  SequenceTable table_;
  PagedKvView view_;
};

}  // namespace baton
