#include "common/scd/evaluate/state_error.h"

#include <algorithm>
#include <cmath>

#include "common/scd/calibrate/statistics.h"
#include "kernels/kv_page.h"

namespace baton {
namespace {

// In float64, of `count` values.
void AddSquares(const float* own, const float* other, std::int64_t count, double& difference,
                double& norm) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double d = static_cast<double>(own[i]) - other[i];
    difference += d * d;
    norm += static_cast<double>(own[i]) * own[i];
  }
}

}  // namespace

double StateErrorWatch::Sums::Relative() const { return own > 0 ? std::sqrt(difference / own) : 0; }

StateErrorWatch::StateErrorWatch(std::size_t caches, const ModelConfig& config)
    : config_(config),
      keys_(caches - 1, std::vector<Sums>(static_cast<std::size_t>(config.layers))),
      values_(keys_),
      hidden_(keys_),
      reference_(static_cast<std::size_t>(config.layers)) {}

void StateErrorWatch::OnPrefix(HandOver& handed, std::int32_t rows) {
  const auto head_dim = static_cast<int>(config_.head_dim);
  const auto heads = static_cast<int>(config_.kv_heads);
  const SequenceTable& own = handed.cache(0).table();
  const KvPageLayout& layout = handed.cache(0).layout();
  // A layer's sums are one thread's, so that their number changes nothing.
  handed.executor().ParallelFor(config_.layers, 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto layer = static_cast<int>(begin); layer < end; ++layer) {
      for (std::size_t w = 0; w < keys_.size(); ++w) {
        const SequenceTable& other = handed.cache(w + 1).table();
        Sums& k = keys_[w][static_cast<std::size_t>(layer)];
        Sums& v = values_[w][static_cast<std::size_t>(layer)];
        for (int head = 0; head < heads; ++head) {
          for (std::int32_t page = 0; page * kPageRows < rows; ++page) {
            const std::byte* a = own.page(layer, head, static_cast<std::size_t>(page));
            const std::byte* b = other.page(layer, head, static_cast<std::size_t>(page));
            const std::int32_t first = page == 0 ? kSinkTokens : 0;
            const std::int32_t last = std::min<std::int32_t>(kPageRows, rows - page * kPageRows);
            const auto* ka = reinterpret_cast<const float*>(a + layout.k_offset());
            const auto* kb = reinterpret_cast<const float*>(b + layout.k_offset());
            for (int c = 0; c < head_dim; ++c) {
              const std::int64_t at = std::int64_t{c} * kPageRows + first;
              AddSquares(ka + at, kb + at, last - first, k.difference, k.own);
            }
            const std::int64_t at = std::int64_t{first} * head_dim;
            AddSquares(reinterpret_cast<const float*>(a + layout.v_offset()) + at,
                       reinterpret_cast<const float*>(b + layout.v_offset()) + at,
                       std::int64_t{last - first} * head_dim, v.difference, v.own);
          }
        }
      }
    }
  });
}

void StateErrorWatch::OnHidden(std::size_t cache, int layer, std::int64_t rows,
                               const float* hidden) {
  const auto l = static_cast<std::size_t>(layer);
  if (cache == 0) {
    reference_[l].assign(hidden, hidden + rows * config_.hidden);
    return;
  }
  Sums& sums = hidden_[cache - 1][l];
  AddSquares(reference_[l].data(), hidden, rows * config_.hidden, sums.difference, sums.own);
}

std::vector<StateErrors> StateErrorWatch::Finish() const {
  const auto relative = [](const std::vector<Sums>& layers) {
    std::vector<double> out;
    out.reserve(layers.size());
    for (const Sums& s : layers) out.push_back(s.Relative());
    return out;
  };
  std::vector<StateErrors> all;
  for (std::size_t w = 0; w < keys_.size(); ++w) {
    all.push_back({relative(keys_[w]), relative(values_[w]), relative(hidden_[w])});
  }
  return all;
}

}  // namespace baton
