#include "common/scd/calibrate/regression.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/executor.h"
#include "tests/common/scd/calibrate/random_rows.h"

namespace baton {
namespace {

constexpr std::int64_t kP = 7;
constexpr std::int64_t kQ = 5;

// A source of falling spread, and a target that is partly a linear map of it.
struct Problem {
  Moments moments;
  Matrix metric;
  Matrix prior;
  std::vector<float> x, y;  // rows
  std::int64_t rows = 400;

  explicit Problem(std::uint32_t seed) {
    Matrix source = RandomMatrix(rows, kP, seed);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t j = 0; j < kP; ++j) source.at(r, j) *= 3.0 / static_cast<double>(1 + j);
    }
    const Matrix map = RandomMatrix(kP, kQ, seed + 1);
    const Matrix target = Plus(Product(source, map), RandomMatrix(rows, kQ, seed + 2), 0.7);
    x = ToFloats(source);
    y = ToFloats(target);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += 2.0f;  // not centred
    SerialExecutor serial;
    PairedSums sums(kP, {kQ});
    sums.Add(rows, x.data(), {y.data()}, serial);
    moments = sums.Finish(0);
    const Matrix root = RandomMatrix(kQ, kQ, seed + 3);
    metric = Plus(Product(root, Transposed(root)), Matrix::Identity(kQ), 0.3);
    prior = Plus(map, RandomMatrix(kP, kQ, seed + 4), 0.5);
  }
  double Lambda(double ridge) const { return ridge * Trace(moments.source) / kP; }
  Matrix WithRidge(double ridge) const {
    return Plus(moments.source, Matrix::Identity(kP), Lambda(ridge));
  }
  // The ridge solution of full rank, by elimination.
  Matrix Best(double ridge) const {
    return Solve(WithRidge(ridge), Plus(moments.cross, prior, Lambda(ridge)));
  }
  // What every map costs beyond the best of full rank: tr (T - G)^T C (T - G) W.
  double Excess(const Matrix& map, double ridge) const {
    const Matrix d = Plus(map, Best(ridge), -1);
    return Trace(Product(Product(Product(Transposed(d), WithRidge(ridge)), d), metric));
  }
};

Matrix First(const Matrix& a, std::int64_t rows) {
  Matrix m(rows, a.cols);
  std::copy_n(a.values.begin(), m.values.size(), m.values.begin());
  return m;
}

// x -> y, [p, q], of the first components.
Matrix MapOf(const LinearCode& code, std::int64_t rank) {
  return Product(Transposed(First(code.encoder, rank)), First(Transposed(code.decoder), rank));
}

TEST(RegressionTest, FullRankIsRidgeTowardsThePrior) {
  for (std::uint32_t seed = 0; seed < 5; ++seed) {
    const Problem p(10 * seed);
    for (const double ridge : {1e-6, 0.1, 3.0}) {
      const LinearCode code = FitLinearCode(p.moments, p.metric, p.prior, {.ridge = ridge});
      ASSERT_EQ(code.rank(), kQ);
      EXPECT_LT(LargestDifference(MapOf(code, kQ), p.Best(ridge)), 1e-9);
    }
  }
}

TEST(RegressionTest, RidgeWithoutEndIsThePrior) {
  const Problem p(3);
  const LinearCode code = FitLinearCode(p.moments, p.metric, p.prior, {.ridge = 1e9});
  EXPECT_LT(LargestDifference(MapOf(code, code.rank()), p.prior), 1e-6);
}

TEST(RegressionTest, WithoutPriorItIsRidgeTowardsZero) {
  const Problem p(4);
  const LinearCode code = FitLinearCode(p.moments, p.metric, {}, {.ridge = 0.2});
  EXPECT_LT(LargestDifference(MapOf(code, code.rank()), Solve(p.WithRidge(0.2), p.moments.cross)),
            1e-9);
  EXPECT_LT(
      LargestDifference(LeastSquares(p.moments, 0.2), Solve(p.WithRidge(0.2), p.moments.cross)),
      1e-9);
}

Matrix Beside(const Matrix& a, const Matrix& b) {
  Matrix m(a.rows, a.cols + b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < m.cols; ++j) {
      m.at(i, j) = j < a.cols ? a.at(i, j) : b.at(i, j - a.cols);
    }
  }
  return m;
}

Matrix BlockDiagonal(const Matrix& a, const Matrix& b) {
  return Transposed(Beside(Transposed(Beside(a, Matrix(a.rows, b.cols))),
                           Transposed(Beside(Matrix(b.rows, a.cols), b))));
}

// Two targets of one source, one of them under a metric that says it matters more.
TEST(RegressionTest, SeveralTargetsAreOneOfAllTheirColumns) {
  const Problem first(7);
  const Problem second(8);
  // The second target goes with the first one's source.
  SerialExecutor serial;
  PairedSums sums(kP, {kQ, kQ, 2 * kQ});
  std::vector<float> both;
  for (std::int64_t r = 0; r < first.rows; ++r) {
    both.insert(both.end(), first.y.begin() + r * kQ, first.y.begin() + (r + 1) * kQ);
    both.insert(both.end(), second.y.begin() + r * kQ, second.y.begin() + (r + 1) * kQ);
  }
  sums.Add(first.rows, first.x.data(), {first.y.data(), second.y.data(), both.data()}, serial);
  const Moments one = sums.Finish(0), other = sums.Finish(1), joint = sums.Finish(2);
  Matrix louder = second.metric;
  for (double& w : louder.values) w *= 9;
  const LinearCode shared = FitLinearCode({RegressionTarget{one, first.metric, first.prior},
                                           RegressionTarget{other, louder, second.prior}},
                                          {.ridge = 0.1});
  const LinearCode concatenated = FitLinearCode(joint, BlockDiagonal(first.metric, louder),
                                                Beside(first.prior, second.prior), {.ridge = 0.1});
  ASSERT_EQ(shared.rank(), kP);
  ASSERT_EQ(concatenated.rank(), kP);
  ASSERT_EQ(shared.decoder.rows, 2 * kQ);
  for (std::int64_t rank = 1; rank <= kP; ++rank) {
    EXPECT_LT(LargestDifference(MapOf(shared, rank), MapOf(concatenated, rank)), 1e-9) << rank;
  }
  for (std::size_t i = 0; i < shared.importance.size(); ++i) {
    EXPECT_NEAR(shared.importance[i], concatenated.importance[i], 1e-9 * shared.importance[0]);
  }
}

// Alternating least squares over A [p, r] and B [r, q] from a random start: another way to the
// best map of a rank.
double AlternatingExcess(const Problem& p, std::int64_t rank, double ridge, std::uint32_t seed) {
  const Matrix c = p.WithRidge(ridge);
  const Matrix cg = Product(c, p.Best(ridge));
  Matrix b = RandomMatrix(rank, kQ, seed);
  Matrix a;
  for (int i = 0; i < 3000; ++i) {
    // A = G W B^T (B W B^T)^-1, B = (A^T C A)^-1 A^T C G.
    const Matrix bw = Product(b, p.metric);
    a = Transposed(
        Solve(Product(bw, Transposed(b)), Transposed(Product(p.Best(ridge), Transposed(bw)))));
    b = Solve(Product(Product(Transposed(a), c), a), Product(Transposed(a), cg));
  }
  return p.Excess(Product(a, b), ridge);
}

TEST(RegressionTest, EveryRankIsTheBestOfItsRank) {
  const Problem p(21);
  const double ridge = 0.1;
  const LinearCode code = FitLinearCode(p.moments, p.metric, p.prior, {.ridge = ridge});
  const double scale = p.Excess(Matrix(kP, kQ), ridge);
  for (std::int64_t rank = 1; rank < kQ; ++rank) {
    const double ours = p.Excess(MapOf(code, rank), ridge);
    EXPECT_NEAR(ours, AlternatingExcess(p, rank, ridge, 5), 1e-6 * scale) << rank;
    for (std::uint32_t seed = 0; seed < 50; ++seed) {
      const Matrix rival =
          Product(RandomMatrix(kP, rank, 100 + seed), RandomMatrix(rank, kQ, 200 + seed));
      EXPECT_LT(ours, p.Excess(rival, ridge));
      // Near the solution as well.
      const Matrix near = Product(
          Plus(Transposed(First(code.encoder, rank)), RandomMatrix(kP, rank, 300 + seed), 1e-3),
          First(Transposed(code.decoder), rank));
      EXPECT_LE(ours, p.Excess(near, ridge) + 1e-9 * scale);
    }
  }
}

TEST(RegressionTest, OtherFactorisationsAreNeverBetter) {
  const Problem p(22);
  const LinearCode best = FitLinearCode(p.moments, p.metric, p.prior, {.ridge = 0.1});
  for (const Factorisation f : {Factorisation::kStacked, Factorisation::kPca}) {
    const LinearCode code =
        FitLinearCode(p.moments, p.metric, p.prior, {.factorisation = f, .ridge = 0.1});
    for (std::int64_t rank = 1; rank <= std::min(code.rank(), best.rank()); ++rank) {
      EXPECT_LE(p.Excess(MapOf(best, rank), 0.1), p.Excess(MapOf(code, rank), 0.1) + 1e-9)
          << FactorisationName(f) << " " << rank;
    }
    // All of their directions together lose nothing.
    EXPECT_LT(LargestDifference(MapOf(code, code.rank()), p.Best(0.1)), 1e-9);
  }
}

TEST(RegressionTest, PcaEncoderKnowsNoTarget) {
  Problem p(23);
  const RegressionOptions options = {.factorisation = Factorisation::kPca, .ridge = 0.1};
  const LinearCode code = FitLinearCode(p.moments, p.metric, p.prior, options);
  // Directions are eigenvectors of the source: components do not correlate.
  const Matrix z = Product(Product(code.encoder, p.moments.source), Transposed(code.encoder));
  for (std::int64_t i = 0; i < z.rows; ++i) {
    for (std::int64_t j = 0; j < i; ++j) {
      EXPECT_NEAR(z.at(i, j), 0, 1e-9 * std::sqrt(z.at(i, i) * z.at(j, j)));
    }
  }
}

TEST(RegressionTest, FewerComponentsAreTheFirstOfMore) {
  const Problem p(24);
  const LinearCode all = FitLinearCode(p.moments, p.metric, p.prior, {});
  const LinearCode two = FitLinearCode(p.moments, p.metric, p.prior, {.max_rank = 2});
  EXPECT_EQ(two.rank(), 2);
  EXPECT_EQ(two.encoder.values, First(all.encoder, 2).values);
  EXPECT_EQ(First(Transposed(two.decoder), 2).values, First(Transposed(all.decoder), 2).values);
  EXPECT_TRUE(std::is_sorted(all.importance.rbegin(), all.importance.rend()));
}

TEST(RegressionTest, ImportanceIsTheSpreadOfAComponentInTheWeightedOutput) {
  const Problem p(25);
  const LinearCode code = FitLinearCode(p.moments, p.metric, p.prior, {});
  for (std::int64_t i = 0; i < code.rank(); ++i) {
    double spread = 0;
    for (std::int64_t r = 0; r < p.rows; ++r) {
      double z = 0;
      for (std::int64_t j = 0; j < kP; ++j) {
        z += code.encoder.at(i, j) * (p.x[r * kP + j] - p.moments.source_mean[j]);
      }
      spread += z * z / static_cast<double>(p.rows);
    }
    double loud = 0;
    for (std::int64_t j = 0; j < kQ; ++j) {
      for (std::int64_t k = 0; k < kQ; ++k) {
        loud += code.decoder.at(j, i) * p.metric.at(j, k) * code.decoder.at(k, i);
      }
    }
    EXPECT_NEAR(code.importance[i], spread * loud, 1e-9 * code.importance[0]);
    EXPECT_NEAR(loud, 1, 1e-9);  // natural spread: an error of z costs its square
  }
}

TEST(RegressionTest, SourceOfLowRankGivesThatManyComponents) {
  Problem p(26);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    for (std::int64_t j = 2; j < kP; ++j) p.x[r * kP + j] = p.x[r * kP] - p.x[r * kP + 1];
  }
  SerialExecutor serial;
  PairedSums sums(kP, {kQ});
  sums.Add(p.rows, p.x.data(), {p.y.data()}, serial);
  const LinearCode code = FitLinearCode(sums.Finish(0), p.metric, {}, {.ridge = 1e-3});
  EXPECT_EQ(code.rank(), 2);
}

TEST(RegressionTest, RelativeErrorIsThatOfTheRows) {
  const Problem p(27);
  const LinearCode code = FitLinearCode(p.moments, p.metric, p.prior, {});
  std::vector<double> offset = p.moments.target_mean;
  offset[1] += 0.25;
  for (const std::int64_t rank : {std::int64_t{2}, code.rank()}) {
    const Matrix map = MapOf(code, rank);
    double error = 0, all = 0;
    for (std::int64_t r = 0; r < p.rows; ++r) {
      Matrix e(1, kQ), y(1, kQ);
      for (std::int64_t j = 0; j < kQ; ++j) {
        y.at(0, j) = p.y[r * kQ + j] - p.moments.target_mean[j];
        e.at(0, j) = p.y[r * kQ + j] - offset[j];
        for (std::int64_t i = 0; i < kP; ++i) {
          e.at(0, j) -= (p.x[r * kP + i] - p.moments.source_mean[i]) * map.at(i, j);
        }
      }
      error += Product(Product(e, p.metric), Transposed(e)).at(0, 0);
      all += Product(Product(y, p.metric), Transposed(y)).at(0, 0);
    }
    EXPECT_NEAR(RelativeError(p.moments, p.metric, code, rank, offset), error / all, 1e-9);
  }
}

}  // namespace
}  // namespace baton
