#include "common/config/scalar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::config {
namespace {

using std::chrono::nanoseconds;
using ::testing::HasSubstr;

TEST(ScalarTest, BoolsAreTrueAndFalseOnly) {
  EXPECT_TRUE(*ParseBool("true"));
  EXPECT_FALSE(*ParseBool("false"));
  for (const char* text : {"yes", "on", "y", "1", "True", "TRUE"}) {
    EXPECT_THAT(std::string(ParseBool(text).status().message()), HasSubstr("write true")) << text;
  }
  for (const char* text : {"no", "off", "n", "N", "0", "False", "NO"}) {
    EXPECT_THAT(std::string(ParseBool(text).status().message()), HasSubstr("write false")) << text;
  }
  for (const char* text : {"", "maybe", "truee", " true"}) EXPECT_FALSE(ParseBool(text).ok());
}

TEST(ScalarTest, Ints) {
  EXPECT_EQ(*ParseInt("0"), 0);
  EXPECT_EQ(*ParseInt("8080"), 8080);
  EXPECT_EQ(*ParseInt("-7"), -7);
  EXPECT_EQ(*ParseInt("+7"), 7);
  EXPECT_EQ(*ParseInt("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(*ParseInt("-9223372036854775808"), INT64_MIN);
  for (const char* text : {"", "-", "+", "1.5", "1e3", "0x10", "1_000", "010", "00", "12:30",
                           "1,000", " 1", "1 ", "--1", "+-1", "9223372036854775808", "\xD9\xA1"}) {
    EXPECT_FALSE(ParseInt(text).ok()) << text;
  }
  EXPECT_THAT(std::string(ParseInt("010").status().message()), HasSubstr("leading zero"));
}

TEST(ScalarTest, DoublesInEverySpelling) {
  EXPECT_EQ(*ParseDouble("1e-5"), 1e-5);
  EXPECT_EQ(*ParseDouble("1.0e-5"), 1e-5);
  EXPECT_EQ(*ParseDouble("1E+3"), 1000);
  EXPECT_EQ(*ParseDouble(".5"), 0.5);
  EXPECT_EQ(*ParseDouble("5."), 5);
  EXPECT_EQ(*ParseDouble("-0.25"), -0.25);
  EXPECT_EQ(*ParseDouble("+3"), 3);
  EXPECT_EQ(*ParseDouble("0"), 0);
  for (const char* text : {"", ".", "-", "e5", "1e", "1e+", "0x10", "1_0", "nan", ".nan", ".inf",
                           "inf", "1e999", "1.5.2", "1,5", "50%", "1 ", "0x1p3"}) {
    EXPECT_FALSE(ParseDouble(text).ok()) << text;
  }
}

TEST(ScalarTest, Durations) {
  EXPECT_EQ(*ParseDuration("30s"), std::chrono::seconds(30));
  EXPECT_EQ(*ParseDuration("250ms"), std::chrono::milliseconds(250));
  EXPECT_EQ(*ParseDuration("5m"), std::chrono::minutes(5));
  EXPECT_EQ(*ParseDuration("1.5h"), std::chrono::minutes(90));
  EXPECT_EQ(*ParseDuration("0.3s"), std::chrono::milliseconds(300));
  EXPECT_EQ(*ParseDuration("2d"), std::chrono::hours(48));
  EXPECT_EQ(*ParseDuration("10us"), std::chrono::microseconds(10));
  EXPECT_EQ(*ParseDuration("0"), nanoseconds(0));
  for (const char* text : {"", "30", "s", "-1s", "1m30s", "1 s", "1S", "1sec", "1e3s", ".s",
                           "999999999999d", "0.1ns", "1.2.3s"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
}

TEST(ScalarTest, Sizes) {
  EXPECT_EQ(*ParseBytes("0"), 0);
  EXPECT_EQ(*ParseBytes("1024"), 1024);
  EXPECT_EQ(*ParseBytes("2GiB"), int64_t{2} << 30);
  EXPECT_EQ(*ParseBytes("512MiB"), 512 << 20);
  EXPECT_EQ(*ParseBytes("1.5KiB"), 1536);
  EXPECT_EQ(*ParseBytes("1GB"), 1000000000);
  EXPECT_EQ(*ParseBytes("16B"), 16);
  for (const char* text : {"", "-1", "2G", "2Gi", "GiB", "2 GiB", "1.5", "0.3B", "9999999999TiB",
                           "0x10", "1_000", "2gib"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

TEST(ScalarTest, FormatsReadBack) {
  for (int64_t ns : {int64_t{0}, int64_t{1}, int64_t{1500}, int64_t{250'000'000},
                     int64_t{90'000'000'000}, int64_t{86'400'000'000'000}, INT64_MAX}) {
    EXPECT_EQ(ParseDuration(FormatDuration(nanoseconds(ns)))->count(), ns);
  }
  EXPECT_EQ(FormatDuration(std::chrono::seconds(90)), "90s");
  EXPECT_EQ(FormatDuration(std::chrono::milliseconds(250)), "250ms");
  for (int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1536}, int64_t{2} << 30, INT64_MAX}) {
    EXPECT_EQ(*ParseBytes(FormatBytes(bytes)), bytes);
  }
  EXPECT_EQ(FormatBytes(int64_t{2} << 30), "2GiB");
  EXPECT_EQ(FormatBytes(1000), "1000");
  for (double value : {0.0, 0.1, 1e-5, 1e300, 1.0 / 3, -2.5}) {
    EXPECT_EQ(*ParseDouble(FormatDouble(value)), value);
  }
}

TEST(ScalarTest, Suggestions) {
  const std::vector<std::string> keys = {"max_batch", "bind", "port", "drain_timeout"};
  EXPECT_EQ(Suggest("max_bacth", keys), "max_batch");
  EXPECT_EQ(Suggest("maxbatch", keys), "max_batch");
  EXPECT_EQ(Suggest("max-batch", keys), "max_batch");
  EXPECT_EQ(Suggest("Port", keys), "port");
  EXPECT_EQ(Suggest("prot", keys), "port");
  EXPECT_EQ(Suggest("drain_timout", keys), "drain_timeout");
  EXPECT_EQ(Suggest("zebra", keys), "");
  EXPECT_EQ(Suggest("", keys), "");
  EXPECT_EQ(Suggest(std::string(10000, 'x'), keys), "");
}

}  // namespace
}  // namespace baton::config
