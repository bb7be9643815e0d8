#include "common/scd/calibrate/candidate.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/scd/calibrate/tiny_pair.h"

namespace baton {
namespace {

// Of a group's layers, under a metric of each consumer's own.
class SharedCandidateTest : public testing::Test {
 protected:
  SharedCandidateTest() : group_(tiny_.Group({0.5f, 1.0f})), set_(RandomDocuments(20, 128, 3)) {
    std::vector<const Document*> documents;
    for (const Document& d : set_.documents) documents.push_back(&d);
    auto statistics = GatherStatistics(
        group_.producer, {group_.consumers[0].model, group_.consumers[1].model}, documents,
        {.sample_rows = 1024, .max_tokens = 128, .progress = nullptr}, tiny_.executor());
    if (!statistics.ok()) throw std::runtime_error(statistics.status().ToString());
    statistics_ = *std::move(statistics);
    const ModelConfig& c = tiny_.model().config();
    width_ = 2 * c.kv_heads * c.head_dim;
    metrics_.producer.assign(3, Matrix::Identity(width_));
    metrics_.consumers.assign(2, metrics_.producer);
    for (Matrix& w : metrics_.consumers[1]) {
      for (std::int64_t i = 0; i < width_; ++i) {
        w.at(i, i) = 0.25 + static_cast<double>(i) / static_cast<double>(width_);
      }
    }
  }

  // Both consumers' K/V of a layer as one target of twice the width, fitted as such.
  LinearCode Concatenated(std::size_t layer, double ridge) const {
    const Moments own = statistics_.Producer(layer);
    const Matrix one = LeastSquares(own, 1e-9);
    Moments joint = statistics_.Consumer(layer, 0);
    Matrix cross(own.source.rows, 2 * width_), prior = cross, metric(2 * width_, 2 * width_);
    for (std::size_t c = 0; c < 2; ++c) {
      const Moments m = statistics_.Consumer(layer, c);
      for (std::int64_t j = 0; j < width_; ++j) {
        const std::int64_t to = static_cast<std::int64_t>(c) * width_ + j;
        for (std::int64_t i = 0; i < cross.rows; ++i) {
          cross.at(i, to) = m.cross.at(i, j);
          prior.at(i, to) = one.at(i, j);
        }
        metric.at(to, to) = metrics_.consumers[c][layer].at(j, j);
      }
    }
    joint.cross = cross;
    return FitLinearCode(joint, metric, prior, {.ridge = ridge});
  }

  TinyPair tiny_;
  CalibrationGroup group_;
  DocumentSet set_;
  CalibrationStatistics statistics_;
  TargetMetrics metrics_;
  std::int64_t width_ = 0;
};

TEST_F(SharedCandidateTest, DecodersAreTheRowsOfAConcatenatedFit) {
  const CandidateSpec spec = {
      .name = "closed", .target = CodeTarget::kConsumer, .regression = {.ridge = 0.1}};
  const auto candidates =
      MakeCandidates(spec, statistics_, metrics_, 192 * 8, nullptr, tiny_.executor());
  ASSERT_EQ(candidates.size(), 2U);
  for (std::size_t l = 0; l < 3; ++l) {
    const LinearCode code = Concatenated(l, 0.1);
    for (std::size_t c = 0; c < 2; ++c) {
      SCOPED_TRACE(testing::Message() << "layer " << l << " consumer " << c);
      const CodecLayer& layer = candidates[c].layers[l];
      const Moments moments = statistics_.Consumer(l, c);
      for (std::size_t i = 0; i < moments.target_mean.size(); ++i) {
        EXPECT_FLOAT_EQ(layer.offset[i], static_cast<float>(moments.target_mean[i]));
      }
      // What the leading components make of an input, which their signs do not change.
      for (std::int64_t k = 0; k < 4; ++k) {
        const double scale = std::sqrt(code.importance[static_cast<std::size_t>(k)]);
        EXPECT_NEAR(layer.importance[static_cast<std::size_t>(k)] / (scale * scale), 1, 1e-4);
        for (std::int64_t row = 0; row < width_; ++row) {
          for (std::int64_t col = 0; col < code.encoder.cols; ++col) {
            const double got =
                static_cast<double>(
                    layer.decoder[static_cast<std::size_t>(row * layer.rank() + k)]) *
                static_cast<double>(
                    layer.encoder[static_cast<std::size_t>(k * code.encoder.cols + col)]);
            const double want = code.decoder.at(static_cast<std::int64_t>(c) * width_ + row, k) *
                                code.encoder.at(k, col);
            ASSERT_NEAR(got, want, 1e-4 * scale) << "component " << k;
          }
        }
      }
    }
  }
}

TEST_F(SharedCandidateTest, BitsOfOneBudgetAreTheSameForAll) {
  for (const CodeTarget target : {CodeTarget::kProducer, CodeTarget::kConsumer}) {
    const auto candidates =
        MakeCandidates({.name = "c", .target = target, .regression = {}}, statistics_, metrics_,
                       48 * 8, nullptr, tiny_.executor());
    std::int64_t bits = 0;
    for (std::size_t l = 0; l < 3; ++l) {
      const CodecLayer& a = candidates[0].layers[l];
      const CodecLayer& b = candidates[1].layers[l];
      EXPECT_EQ(a.bits, b.bits);
      EXPECT_EQ(a.encoder, b.encoder);
      EXPECT_EQ(a.levels, b.levels);
      EXPECT_EQ(a.mean, b.mean);
      EXPECT_EQ(a.importance, b.importance);
      EXPECT_EQ(a.decoder == b.decoder, target == CodeTarget::kProducer);
      bits = std::accumulate(a.bits.begin(), a.bits.end(), bits);
      // The consumer that an adapter of twice the size moved is farther off.
      if (target == CodeTarget::kProducer) {
        EXPECT_LT(candidates[0].relative_error[l], candidates[1].relative_error[l]);
      }
    }
    EXPECT_LE(bits, 48 * 8);
    EXPECT_GT(bits, 47 * 8);
  }
}

}  // namespace
}  // namespace baton
