#include "common/scd/decoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/common/scd/coder_fixture.h"

namespace baton {
namespace {

class DecoderTest : public CoderFixture {
 protected:
  static DecoderRope Rope() {
    DecoderRope rope;
    for (int i = 0; i < 4; ++i) {
      rope.inv_freq.push_back(static_cast<float>(std::pow(10000.0, -i / 4.0)));
    }
    return rope;
  }

  // fp32 sums of six products, and angles up to 191 in fp32: 191 * 2^-24 times values below 8.
  static constexpr float kTolerance = 2e-4f;

  // The consumer of the patched layers, by its formula in float64.
  void Project(int layer, const float* inputs, std::int64_t rows, float* kv) const {
    const auto weights = [&](const char* name) { return FloatsOf(*patch_expected_, layer, name); };
    const auto gamma = weights("gamma"), w = weights("w"), bias = weights("bias"),
               k_norm = weights("k_norm");
    constexpr double kEps = 1e-5;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* h = inputs + r * 24;
      const double scale = 1 / std::sqrt(std::inner_product(h, h + 24, h, 0.0) / 24 + kEps);
      double out[32];
      for (int i = 0; i < 32; ++i) {
        out[i] = bias[i];
        for (int j = 0; j < 24; ++j) out[i] += scale * h[j] * gamma[j] * w[i * 24 + j];
      }
      for (int head = 0; head < 2; ++head) {
        double* k = out + head * 8;
        const double norm = 1 / std::sqrt(std::inner_product(k, k + 8, k, 0.0) / 8 + kEps);
        for (int j = 0; j < 8; ++j) k[j] *= norm * k_norm[j];
      }
      std::copy_n(out, 32, kv + r * 32);
    }
  }

  void ExpectDecodes(const CodeDecoder& decoder, int layer, int components,
                     const std::string& name) {
    const std::vector<std::byte> codes = Codes(layer);
    const std::vector<float> want =
        decoder.patched() ? FloatsOf(*patch_expected_, layer, name) : Floats(layer, name);
    std::vector<float> kv(want.size());
    decoder.Decode(layer, codes.data(), components, /*first_position=*/128, kv.data(), executor_);
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(kv[i], want[i], kTolerance) << name << " " << layer << ": " << i;
    }
  }
};

TEST_F(DecoderTest, KvIsNumPys) {
  const CodeDecoder decoder(codec_, Rope(), executor_);
  EXPECT_EQ(decoder.kv_dim(), 16);
  ExpectDecodes(decoder, 0, 6, "kv");
  ExpectDecodes(decoder, 1, 4, "kv");
}

TEST_F(DecoderTest, ACutDecodesWithoutTheRest) {
  const CodeDecoder decoder(codec_, Rope(), executor_);
  const auto cut = CutCode(decoder.shape(), 3);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_LT(cut->layers[0].components, 6);
  for (int layer = 0; layer < 2; ++layer) {
    ExpectDecodes(decoder, layer, cut->layers[static_cast<std::size_t>(layer)].components,
                  "kv_cut");
  }
}

// s = B z + offset by hand, over the components that came.
TEST_F(DecoderTest, TheStreamIsALinearMapOfItsComponents) {
  const Codec codec = RunOfBoth();
  const CodeDecoder decoder(codec, Rope(), executor_);
  EXPECT_EQ(decoder.run(), (LayerRun{0, 2}));
  EXPECT_EQ(decoder.hidden(), 24);
  EXPECT_TRUE(CodeDecoder(codec_, Rope(), executor_).run().empty());
  const CodecLayer& layer = codec.layers[0];
  const std::vector<std::byte> codes = Codes(0);
  for (const int components : {6, 2}) {
    std::vector<float> z(kCodeBlockRows * 6);
    decoder.Components(0, codes.data(), components, z.data());
    std::vector<float> stream(kCodeBlockRows * 24, -1.0f);
    decoder.DecodeStream(codes.data(), components, stream.data(), executor_);
    for (std::size_t i = 0; i < stream.size(); ++i) {
      const float* b = layer.decoder.data() + i % 24 * 6;
      const float* of_row = z.data() + i / 24 * 6;
      ASSERT_NEAR(stream[i], std::inner_product(b, b + components, of_row, layer.offset[i % 24]),
                  kTolerance);
    }
  }
}

TEST_F(DecoderTest, PatchedKvIsNumPys) {
  const CodeDecoder decoder(patch_, Rope(), executor_,
                            [this](int layer, const float* inputs, std::int64_t rows, float* kv,
                                   Executor&) { Project(layer, inputs, rows, kv); });
  EXPECT_TRUE(decoder.patched());
  EXPECT_EQ(decoder.encoder_digest(), codec_.EncoderDigest());
  const auto cut = CutCode(decoder.shape(), 3);
  ASSERT_TRUE(cut.ok()) << cut.status();
  for (int layer = 0; layer < 2; ++layer) {
    ExpectDecodes(decoder, layer, static_cast<int>(patch_.layers[layer].rank()), "kv");
    ExpectDecodes(decoder, layer, cut->layers[static_cast<std::size_t>(layer)].components,
                  "kv_cut");
  }
}

}  // namespace
}  // namespace baton
