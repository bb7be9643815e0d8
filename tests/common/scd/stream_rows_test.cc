#include "common/scd/stream_rows.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(StreamRows, ComeBackWithinFp16OfTheirOwnScale) {
  constexpr std::int64_t kRows = 5, kHidden = 64;
  std::vector<float> states;  // x, then rms
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kHidden; ++i) {
      states.push_back(std::sin(static_cast<float>(7 * r + i)) * (i == 3 ? 7.9f : 0.02f));
    }
    states.push_back(std::pow(10.0f, static_cast<float>(2 * r - 3)));  // 1e-3 to 1e5
  }
  std::vector<std::byte> bytes(kRows * StreamRowBytes(kHidden));
  EXPECT_EQ(bytes.size(), 5u * 132u);
  EncodeStreamRows(states.data(), kRows, kHidden, bytes.data());
  std::vector<float> stream(kRows * kHidden);
  DecodeStreamRows(bytes.data(), kRows, kHidden, stream.data());
  for (int r = 0; r < kRows; ++r) {
    const float* row = states.data() + r * (kHidden + 1);
    const float rms = row[kHidden];
    for (int i = 0; i < kHidden; ++i) {
      const float want = row[i] * rms;
      // Channel 3 of the last row is beyond fp16 as a plain number.
      EXPECT_NEAR(stream[static_cast<std::size_t>(r * kHidden + i)], want,
                  std::abs(want) * 0x1p-11 + rms * 0x1p-25);
    }
  }
}

// From docs/wire_format.md by hand.
TEST(StreamRows, BytesOfARow) {
  const float states[] = {1.0f, -0.5f, 2.0f};
  std::byte bytes[8];
  ASSERT_EQ(StreamRowBytes(2), sizeof(bytes));
  EncodeStreamRows(states, 1, 2, bytes);
  const unsigned char want[] = {0, 0, 0, 0x40, 0, 0x3c, 0, 0xb8};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(static_cast<unsigned char>(bytes[i]), want[i]) << i;
}

}  // namespace
}  // namespace baton
