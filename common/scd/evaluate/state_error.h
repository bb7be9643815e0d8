// How far what a consumer attends to, and what it makes of it, is from its own: per layer the
// Frobenius norm of the difference over that of its own states.
//
//   r_K, r_V    of the prefix's keys (rotated, which changes no norm) and values
//   hidden      of the states of the tokens that follow, after the layer: whether an error of K/V
//               grows over depth (arXiv 2606.07684, Lemma 5.1)
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/scd/calibrate/held_out.h"

namespace baton {

struct StateErrors {
  std::vector<double> keys;    // [layers]
  std::vector<double> values;  // [layers]
  std::vector<double> hidden;  // [layers]
};

class StateErrorWatch : public HeldOutWatch {
 public:
  // `caches`: the reference and the ways.
  StateErrorWatch(std::size_t caches, const ModelConfig& config);

  void OnPrefix(HandOver& handed, std::int32_t rows) override;
  void OnHidden(std::size_t cache, int layer, std::int64_t rows, const float* hidden) override;

  // Over everything seen; one entry for each way.
  std::vector<StateErrors> Finish() const;

 private:
  struct Sums {
    double difference = 0;  // squared
    double own = 0;

    double Relative() const;
  };
  // By way, then layer.
  using Table = std::vector<std::vector<Sums>>;

  const ModelConfig config_;
  Table keys_, values_, hidden_;
  std::vector<std::vector<float>> reference_;  // hidden states of the last document, by layer
};

}  // namespace baton
