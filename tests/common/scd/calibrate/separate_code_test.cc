#include "common/scd/calibrate/separate_code.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/executor.h"
#include "tests/common/scd/calibrate/random_rows.h"

namespace baton {
namespace {

constexpr std::int64_t kInputs = 6;
constexpr std::int64_t kHalf = 3;

Moments RandomMoments(std::uint32_t seed) {
  const std::int64_t rows = 300;
  const Matrix source = RandomMatrix(rows, kInputs, seed);
  const Matrix target = Plus(Product(source, RandomMatrix(kInputs, 2 * kHalf, seed + 1)),
                             RandomMatrix(rows, 2 * kHalf, seed + 2), 0.5);
  const std::vector<float> x = ToFloats(source), y = ToFloats(target);
  SerialExecutor serial;
  PairedSums sums(kInputs, {2 * kHalf});
  sums.Add(rows, x.data(), {y.data()}, serial);
  return sums.Finish(0);
}

// Without a limit on the ranks the map is the ridge solution, whatever the metric and the halves.
TEST(SeparateCodeTest, OfFullRankIsTheRidgeSolution) {
  const Moments moments = RandomMoments(1);
  const Matrix prior = RandomMatrix(kInputs, 2 * kHalf, 9);
  const LinearCode code =
      FitSeparateCode(moments, Matrix::Identity(2 * kHalf), prior, {.ridge = 0.2}, {});
  const double lambda = 0.2 * Trace(moments.source) / kInputs;
  const Matrix best = Solve(Plus(moments.source, Matrix::Identity(kInputs), lambda),
                            Plus(moments.cross, prior, lambda));
  EXPECT_LT(LargestDifference(Product(Transposed(code.encoder), Transposed(code.decoder)), best),
            1e-9);
}

TEST(SeparateCodeTest, ComponentsAreOfKeysOrOfValues) {
  const LinearCode code = FitSeparateCode(RandomMoments(2), Matrix::Identity(2 * kHalf), {},
                                          {.ridge = 0.1}, {.keys = 1, .values = 2});
  ASSERT_EQ(code.rank(), 3);
  EXPECT_TRUE(std::is_sorted(code.importance.rbegin(), code.importance.rend()));
  int keys = 0;
  for (std::int64_t i = 0; i < code.rank(); ++i) {
    double of_keys = 0, of_values = 0;
    for (std::int64_t j = 0; j < kHalf; ++j) {
      of_keys += std::abs(code.decoder.at(j, i));
      of_values += std::abs(code.decoder.at(kHalf + j, i));
    }
    EXPECT_TRUE((of_keys > 0) != (of_values > 0));
    keys += of_keys > 0;
  }
  EXPECT_EQ(keys, 1);
}

}  // namespace
}  // namespace baton
