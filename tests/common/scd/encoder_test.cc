#include "common/scd/encoder.h"

#include <limits>

#include "tests/common/scd/coder_fixture.h"

namespace baton {
namespace {

using EncoderTest = CoderFixture;

TEST_F(EncoderTest, CodesAreNumPysToTheBit) {
  const CodeEncoder encoder(codec_, executor_);
  EXPECT_EQ(encoder.width(), 24);
  EXPECT_EQ(encoder.row_width(), 25);
  for (int layer = 0; layer < 2; ++layer) {
    const std::vector<float> rows = Floats(layer, "rows");
    std::vector<std::byte> codes(
        encoder.whole().layers[static_cast<std::size_t>(layer)].block_bytes);
    encoder.Encode(layer, rows.data(), encoder.width(), /*first_row=*/4, codes.data(), executor_);
    EXPECT_EQ(codes, Codes(layer)) << "layer " << layer;
  }
}

// Rows at half their scale with an rms of 2 are the rows; other layers do not look at it.
TEST_F(EncoderTest, TheStreamIsTheRowTimesItsRms) {
  const CodeEncoder run(RunOfBoth(), executor_);
  const CodeEncoder other(codec_, executor_);
  const std::vector<float> rows = Floats(0, "rows");
  const auto blocks = [&](const CodeEncoder& encoder, float scale, float rms) {
    std::vector<float> scaled;
    for (std::size_t row = 0; row < kCodeBlockRows; ++row) {
      for (std::size_t i = 0; i < 24; ++i) scaled.push_back(rows[row * 24 + i] * scale);
      scaled.push_back(rms);
    }
    std::vector<std::byte> codes(encoder.whole().layers[0].block_bytes);
    encoder.Encode(0, scaled.data(), encoder.row_width(), 4, codes.data(), executor_);
    return codes;
  };
  EXPECT_EQ(blocks(run, 0.5f, 2), Codes(0));
  EXPECT_NE(blocks(run, 1, 2), Codes(0));
  EXPECT_EQ(blocks(other, 1, 2), Codes(0));
}

TEST_F(EncoderTest, ANativeLayerHasNoCode) {
  const CodeEncoder run(RunOfBoth(), executor_);
  EXPECT_EQ(run.whole().layers[1].components, 0);
  EXPECT_EQ(run.whole().layers[1].block_bytes, 0u);
  const std::vector<float> rows(static_cast<std::size_t>(kCodeBlockRows * run.row_width()), 1.0f);
  run.Encode(1, rows.data(), run.row_width(), 4, nullptr, executor_);
}

TEST_F(EncoderTest, RowsThatAreLeftOutAreNotRead) {
  const CodeEncoder encoder(codec_, executor_);
  std::vector<float> rows = Floats(0, "rows");
  std::fill_n(rows.begin(), 4 * encoder.width(), std::numeric_limits<float>::quiet_NaN());
  std::vector<std::byte> codes(encoder.whole().layers[0].block_bytes);
  encoder.Encode(0, rows.data(), encoder.width(), 4, codes.data(), executor_);
  EXPECT_EQ(codes, Codes(0));
}

// Every pattern of numbers gives some code: nothing a model may compute can leave the levels.
TEST_F(EncoderTest, AnyNumberHasACode) {
  const CodeEncoder encoder(codec_, executor_);
  const float inf = std::numeric_limits<float>::infinity();
  for (const float x : {inf, -inf, std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
    const std::vector<float> rows(static_cast<std::size_t>(64 * encoder.width()), x);
    std::vector<std::byte> codes(encoder.whole().layers[0].block_bytes);
    encoder.Encode(0, rows.data(), encoder.width(), 0, codes.data(), executor_);
  }
}

TEST_F(EncoderTest, TheDigestIsOfWhatMakesCodes) {
  const std::string digest = codec_.EncoderDigest();
  Codec other = codec_;
  other.layers[1].decoder[0] += 1;
  other.identity.consumer_weights = "another";
  EXPECT_EQ(other.EncoderDigest(), digest);
  EXPECT_NE(other.Digest(), codec_.Digest());
  other = codec_;
  other.layers[1].levels[0] -= 1;
  EXPECT_NE(other.EncoderDigest(), digest);
  other = codec_;
  other.identity.producer_weights = "another";
  EXPECT_NE(other.EncoderDigest(), digest);
}

}  // namespace
}  // namespace baton
