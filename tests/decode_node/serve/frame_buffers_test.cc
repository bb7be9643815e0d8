#include "decode_node/serve/frame_buffers.h"

#include <cstring>
#include <utility>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr std::int64_t kBytes = 1 << 20;

TEST(FrameBuffersTest, GivesWhatIsKeptToTheNextThatFits) {
  FrameBuffers buffers(8 * kBytes);
  auto first = buffers.Take(kBytes);
  ASSERT_TRUE(first.has_value());
  std::memset(first->data(), 7, kBytes);
  const std::uint8_t* memory = first->data();
  buffers.Give(*std::move(first));
  EXPECT_EQ(buffers.kept_bytes(), kBytes);
  const auto second = buffers.Take(kBytes - 100);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->data(), memory);
  EXPECT_EQ(buffers.kept_bytes(), 0);
}

TEST(FrameBuffersTest, TakesTheLeastThatFitsAndNoneThatIsMuchTooLarge) {
  FrameBuffers buffers(64 * kBytes);
  auto large = buffers.Take(9 * kBytes);
  auto middle = buffers.Take(2 * kBytes);
  const std::uint8_t* smaller = middle->data();
  buffers.Give(*std::move(large));
  buffers.Give(*std::move(middle));
  const auto again = buffers.Take(kBytes);
  EXPECT_EQ(again->data(), smaller);
  EXPECT_EQ(buffers.Take(kBytes)->capacity(), kBytes);  // a new one
  EXPECT_EQ(buffers.kept_bytes(), 9 * kBytes);
}

TEST(FrameBuffersTest, KeepsNoMoreThanItMayAndNothingSmall) {
  FrameBuffers buffers(2 * kBytes);
  auto a = buffers.Take(kBytes), b = buffers.Take(kBytes), c = buffers.Take(kBytes);
  buffers.Give(*std::move(a));
  buffers.Give(*std::move(b));
  buffers.Give(*std::move(c));
  EXPECT_EQ(buffers.kept_bytes(), 2 * kBytes);
  FrameBuffers others(2 * kBytes);
  others.Give(*others.Take(FrameBuffers::kLeastKept - 1));
  others.Give({});
  EXPECT_EQ(others.kept_bytes(), 0);
}

}  // namespace
}  // namespace baton
