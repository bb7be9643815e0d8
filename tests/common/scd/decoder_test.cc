#include "common/scd/decoder.h"

#include <cmath>

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

  void ExpectDecodes(const CodeDecoder& decoder, int layer, int components,
                     const std::string& name) {
    const std::vector<std::byte> codes = Codes(layer);
    const std::vector<float> want = Floats(layer, name);
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

}  // namespace
}  // namespace baton
