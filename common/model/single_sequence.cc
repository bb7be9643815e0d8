#include "common/model/single_sequence.h"

#include <utility>

#include "common/base/status_macros.h"

namespace baton {

SingleSequence::SingleSequence(std::shared_ptr<PagePool> pool, int layers, int kv_heads)
    : pool_(std::move(pool)), table_(layers, kv_heads), view_(table_, pool_->layout()) {}

absl::StatusOr<std::unique_ptr<SingleSequence>> SingleSequence::Create(const ModelConfig& config,
                                                                       DType kv_dtype,
                                                                       std::int32_t max_rows) {
  const std::int64_t pages =
      config.layers * config.kv_heads * ((max_rows + kPageRows - 1) / kPageRows);
  BATON_ASSIGN_OR_RETURN(
      auto pool,
      PagePool::Create(KvPageLayout{static_cast<int>(config.head_dim), kv_dtype}, pages));
  BATON_ASSIGN_OR_RETURN(Reservation reservation, pool->Reserve("single_sequence", pages));
  std::unique_ptr<SingleSequence> sequence(new SingleSequence(
      std::move(pool), static_cast<int>(config.layers), static_cast<int>(config.kv_heads)));
  sequence->table_.EnsureCapacity(max_rows, reservation);
  return sequence;
}

void SingleSequence::Rewind() {
  for (int layer = 0; layer < table_.layers(); ++layer) {
    for (int head = 0; head < table_.kv_heads(); ++head) table_.set_num_rows(layer, head, 0);
  }
}

}  // namespace baton
