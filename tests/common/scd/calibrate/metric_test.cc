#include "common/scd/calibrate/metric.h"

#include <vector>

#include "common/model/model_weights.h"
#include "common/weights/lora.h"
#include "gtest/gtest.h"
#include "kernels/elementwise.h"
#include "tests/common/scd/calibrate/random_rows.h"
#include "tests/common/scd/calibrate/tiny_pair.h"

namespace baton {
namespace {

constexpr std::int64_t kRows = 40;

// W_O of the base, and what the adapter of TinyPair adds to it: [hidden, heads * head_dim].
Matrix Output(const TinyPair& tiny, const ModelConfig& c, int layer, float size) {
  const PackedMatrix& o = tiny.model().weights().layers[layer].o;
  Matrix w(o.rows(), o.cols());
  std::vector<float> row(static_cast<std::size_t>(o.cols()));
  for (std::int64_t r = 0; r < o.rows(); ++r) {
    o.UnpackRow(r, row.data());
    for (std::int64_t j = 0; j < o.cols(); ++j) w.at(r, j) = row[j];
  }
  if (size == 0) return w;
  const LoraModule m = RandomAdapter(c, size, 9).layers[layer].at("o_proj");
  for (std::int64_t i = 0; i < m.out; ++i) {
    for (std::int64_t j = 0; j < m.in; ++j) {
      for (std::int64_t k = 0; k < m.rank; ++k) {
        w.at(i, j) += static_cast<double>(m.scale) * m.b[i * m.rank + k] * m.a[k * m.in + j];
      }
    }
  }
  return w;
}

double Quadratic(const Matrix& w, const std::vector<double>& e) {
  double sum = 0;
  for (std::int64_t i = 0; i < w.rows; ++i) {
    for (std::int64_t j = 0; j < w.cols; ++j) sum += e[i] * w.at(i, j) * e[j];
  }
  return sum;
}

// Queries and errors at random; what the metric says is compared with the formula of its header,
// with keys rotated by the kernel that rotates them in a forward pass.
TEST(MetricTest, HeuristicIsTheExpectedChangeOfTheAttentionOutput) {
  for (const float size : {0.0f, 0.5f}) {
    TinyPair tiny(size);
    const ModelConfig& c = tiny.model().config();
    const std::int64_t d = c.head_dim, kv_dim = c.kv_heads * d, width = c.heads * d;
    LayerStates states;
    states.rows = kRows;
    states.queries = ToFloats(RandomMatrix(kRows, width, 1));
    states.energy.assign(kRows, 4.0f);
    QuerySums queries(c.heads, d);
    queries.Add(states, 3);
    const std::int64_t rows = kRows - 3;
    const Matrix root = RandomMatrix(2 * kv_dim, 2 * kv_dim, 2);
    const Matrix covariance = Product(root, Transposed(root));
    // Distances (i + 1/2) * 128 / 64 = 1, 3, 5 ... 127.
    const Matrix w = HeuristicMetric(tiny.pair().consumer, 1, queries, covariance, 128);
    ASSERT_EQ(w.rows, 2 * kv_dim);
    EXPECT_LT(LargestDifference(w, Transposed(w)), 1e-9);
    const Matrix output = Output(tiny, c, 1, size);

    for (std::int64_t head = 0; head < c.kv_heads; ++head) {
      std::vector<double> dk(2 * kv_dim), dv(2 * kv_dim);
      const Matrix noise = RandomMatrix(2, d, 3 + static_cast<std::uint32_t>(head));
      for (std::int64_t i = 0; i < d; ++i) {
        dk[head * d + i] = noise.at(0, i);
        dv[kv_dim + head * d + i] = noise.at(1, i);
      }
      double value_cost = 0, key_cost = 0;
      const std::int64_t group = c.heads / c.kv_heads;
      for (std::int64_t h = head * group; h < (head + 1) * group; ++h) {
        double spread = 0;
        for (std::int64_t o = 0; o < output.rows; ++o) {
          double moved = 0;
          for (std::int64_t i = 0; i < d; ++i) {
            moved += output.at(o, h * d + i) * noise.at(1, i);
            for (std::int64_t j = 0; j < d; ++j) {
              spread += output.at(o, h * d + i) * output.at(o, h * d + j) *
                        covariance.at(kv_dim + head * d + i, kv_dim + head * d + j);
            }
          }
          value_cost += moved * moved;
        }
        double scores = 0;
        for (std::int32_t distance = 1; distance < 128; distance += 2) {
          std::vector<float> q(states.queries.begin() + 3 * width, states.queries.end());
          const std::vector<std::int32_t> positions(static_cast<std::size_t>(rows), distance);
          Rope(q.data(), width, positions.data(), tiny.model().weights().inv_freq.data(), 1,
               static_cast<int>(c.heads), static_cast<int>(d), rows, tiny.executor());
          for (std::int64_t r = 0; r < rows; ++r) {
            double score = 0;
            for (std::int64_t i = 0; i < d; ++i) score += q[r * width + h * d + i] * noise.at(0, i);
            scores += score * score / static_cast<double>(64 * rows);
          }
        }
        key_cost += spread * scores / static_cast<double>(d);
      }
      // The floor of 1/1000 of the mean, and rotations in fp32.
      EXPECT_NEAR(Quadratic(w, dv) * 4, value_cost, 0.01 * value_cost) << size;
      EXPECT_NEAR(Quadratic(w, dk) * 4, key_cost, 0.01 * key_cost) << size;
    }
  }
}

TEST(MetricTest, HeadsAndKeysAndValuesDoNotMix) {
  TinyPair tiny(0);
  const ModelConfig& c = tiny.model().config();
  LayerStates states;
  states.rows = kRows;
  states.queries = ToFloats(RandomMatrix(kRows, c.heads * c.head_dim, 1));
  states.energy.assign(kRows, 1.0f);
  QuerySums queries(c.heads, c.head_dim);
  queries.Add(states, 0);
  const std::int64_t n = 2 * c.kv_heads * c.head_dim;
  const Matrix w = HeuristicMetric(tiny.pair().producer, 0, queries, Matrix::Identity(n), 100);
  for (std::int64_t i = 0; i < n; ++i) {
    EXPECT_GT(w.at(i, i), 0);
    for (std::int64_t j = 0; j < n; ++j) {
      if (i / c.head_dim != j / c.head_dim) {
        EXPECT_EQ(w.at(i, j), 0);
      }
    }
  }
}

}  // namespace
}  // namespace baton
