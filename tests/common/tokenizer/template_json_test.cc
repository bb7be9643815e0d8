#include "common/tokenizer/template_json.h"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

std::string Dumped(const std::string& text, int indent = 0) {
  const auto json = TemplateJson::Parse(text);
  if (!json.ok()) return std::string(json.status().message());
  return *json->Dump(1 << 24, indent);
}

// Python 3: json.dumps(json.loads(text), ensure_ascii=False).
TEST(TemplateJsonTest, NumbersAsPythonWritesThem) {
  EXPECT_EQ(Dumped("[1.0,-0.0,0.1,1e5,1E-7,123e-6,1e15,1e16,1.5e16,1e22,5e-324]"),
            "[1.0, -0.0, 0.1, 100000.0, 1e-07, 0.000123, 1000000000000000.0, 1e+16, 1.5e+16, "
            "1e+22, 5e-324]");
  EXPECT_EQ(Dumped("[1.7976931348623157e308,100.25,-12345.678,0.00001]"),
            "[1.7976931348623157e+308, 100.25, -12345.678, 1e-05]");
  EXPECT_EQ(Dumped("[0,-0,-1,18446744073709551615,123456789012345678901234567890]"),
            "[0, 0, -1, 18446744073709551615, 123456789012345678901234567890]");
  EXPECT_THAT(Dumped("1e999"), HasSubstr("range"));
}

TEST(TemplateJsonTest, TextAsPythonWritesIt) {
  EXPECT_EQ(Dumped(R"("\"\\\/\b\f\n\r\t\u0000\u001f\u007f \u00e9 \ud83c\udf0d")"),
            "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f \xc3\xa9 \xf0\x9f\x8c\x8d\"");
}

TEST(TemplateJsonTest, OrderIsKeptAndTheLastOfEqualKeysCounts) {
  EXPECT_EQ(Dumped(R"({"b":1,"a":{},"c":[],"b":{"z":null,"y":true}})"),
            R"({"b": {"z": null, "y": true}, "a": {}, "c": []})");
  EXPECT_EQ(Dumped(R"({"a":1,"a":2,"a":3})"), R"({"a": 3})");
  // Many equal keys and many keys take no more than n log n.
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += "\"k" + std::to_string(i % 100000) + "\":1,";
  EXPECT_EQ(Dumped(text + "\"k0\":2}").substr(0, 18), "{\"k0\": 2, \"k1\": 1,");
}

TEST(TemplateJsonTest, Indented) {
  EXPECT_EQ(Dumped(R"({"a":[1,{"b":[]}],"c":{}})", 4),
            "{\n    \"a\": [\n        1,\n        {\n            \"b\": []\n        }\n    ],\n"
            "    \"c\": {}\n}");
}

TEST(TemplateJsonTest, HostileTextIsRefused) {
  for (const char* bad : {"", "{", "[1,]", "nul", "{\"a\" 1}", "\"\xff\"", "'a'", "NaN", "1 2"}) {
    EXPECT_FALSE(TemplateJson::Parse(bad).ok()) << bad;
  }
  EXPECT_TRUE(TemplateJson::Parse(std::string(64, '[') + std::string(64, ']')).ok());
  EXPECT_THAT(Dumped(std::string(65, '[')), HasSubstr("deeper than 64"));
  EXPECT_THAT(Dumped(std::string(1 << 20, '[')), HasSubstr("deeper than 64"));
  EXPECT_EQ(TemplateJson::Parse("[1,2,3,4]")->Dump(8).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace baton
