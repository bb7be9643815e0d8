#include "decode_node/serve/link_meter.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(LinkMeter, FollowsWhatItSees) {
  LinkMeter meter;
  EXPECT_EQ(meter.bytes_per_s(), 0);
  meter.Observe(1'000'000, 0.1);
  EXPECT_DOUBLE_EQ(meter.bytes_per_s(), 1e7);
  for (int i = 0; i < 30; ++i) meter.Observe(1'000'000, 1);
  EXPECT_NEAR(meter.bytes_per_s(), 1e6, 1e3);
}

TEST(LinkMeter, WhatSaysNothingIsLeftOut) {
  LinkMeter meter;
  meter.Observe(1000, 1e-9);
  meter.Observe(1'000'000, 0);
  EXPECT_EQ(meter.bytes_per_s(), 0);
}

}  // namespace
}  // namespace baton
