#include "common/scd/calibrate/separate_code.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace baton {
namespace {

// Rows [row, row + rows) of columns [col, col + cols).
Matrix Block(const Matrix& m, std::int64_t row, std::int64_t rows, std::int64_t col,
             std::int64_t cols) {
  Matrix block(rows, cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) block.at(i, j) = m.at(row + i, col + j);
  }
  return block;
}

Moments OfColumns(const Moments& moments, std::int64_t begin, std::int64_t count) {
  Moments half = moments;
  half.target_mean.assign(moments.target_mean.begin() + begin,
                          moments.target_mean.begin() + begin + count);
  half.cross = Block(moments.cross, 0, moments.cross.rows, begin, count);
  half.target = Block(moments.target, begin, count, begin, count);
  return half;
}

struct Component {
  const LinearCode* code;
  std::int64_t index;
  std::int64_t first_row;  // of the decoder's, where its half begins
  double importance;
};

}  // namespace

LinearCode FitSeparateCode(const Moments& moments, const Matrix& metric, const Matrix& prior,
                           const RegressionOptions& options, const SeparateRanks& ranks) {
  const std::int64_t q = moments.cross.cols;
  const std::int64_t half = q / 2;
  std::vector<LinearCode> codes;
  for (const auto& [begin, rank] :
       {std::pair{std::int64_t{0}, ranks.keys}, std::pair{half, ranks.values}}) {
    RegressionOptions of_half = options;
    of_half.max_rank = rank;
    codes.push_back(FitLinearCode(
        OfColumns(moments, begin, half), Block(metric, begin, half, begin, half),
        prior.empty() ? Matrix() : Block(prior, 0, prior.rows, begin, half), of_half));
  }
  std::vector<Component> order;
  for (std::size_t part = 0; part < codes.size(); ++part) {
    for (std::int64_t i = 0; i < codes[part].rank(); ++i) {
      order.push_back({&codes[part], i, static_cast<std::int64_t>(part) * half,
                       codes[part].importance[static_cast<std::size_t>(i)]});
    }
  }
  std::stable_sort(order.begin(), order.end(), [](const Component& a, const Component& b) {
    return a.importance > b.importance;
  });
  const auto rank = static_cast<std::int64_t>(order.size());
  LinearCode joined;
  joined.encoder = Matrix(rank, moments.source.rows);
  joined.decoder = Matrix(q, rank);
  for (std::int64_t i = 0; i < rank; ++i) {
    const Component& c = order[static_cast<std::size_t>(i)];
    for (std::int64_t j = 0; j < moments.source.rows; ++j) {
      joined.encoder.at(i, j) = c.code->encoder.at(c.index, j);
    }
    for (std::int64_t j = 0; j < half; ++j) {
      joined.decoder.at(c.first_row + j, i) = c.code->decoder.at(j, c.index);
    }
    joined.importance.push_back(c.importance);
  }
  return joined;
}

}  // namespace baton
