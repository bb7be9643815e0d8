// Bit for bit what the `gguf` Python package decodes (tests/data/gguf_quant).
#include "common/weights/dequantize.h"

#include <cstring>
#include <set>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/test_data.h"

namespace baton {
namespace {

std::vector<std::byte> FromHex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

StoredDType ByName(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(StoredDType::kBool); ++i) {
    if (DTypeName(static_cast<StoredDType>(i)) == name) return static_cast<StoredDType>(i);
  }
  ADD_FAILURE() << name;
  return StoredDType::kF32;
}

TEST(DequantizeTest, BitExactAgainstTheGgufPackage) {
  const auto rows =
      nlohmann::json::parse(ReadFileOrEmpty(TestDataDir() + "/gguf_quant/blocks.json"));
  std::set<std::string> types;
  for (const auto& row : rows) {
    const StoredDType dtype = ByName(row["type"]);
    types.insert(row["type"]);
    const auto packed = FromHex(row["bytes"]);
    const auto expected = FromHex(row["fp32"]);
    const auto n = static_cast<int64_t>(expected.size() / sizeof(float));
    ASSERT_EQ(DTypeRowBytes(dtype, n), static_cast<int64_t>(packed.size()));
    // At an odd address, as a safetensors file may have it.
    std::vector<std::byte> shifted(packed.size() + 1);
    std::memcpy(shifted.data() + 1, packed.data(), packed.size());
    std::vector<float> values(static_cast<size_t>(n));
    ASSERT_TRUE(DequantizeRow(dtype, shifted.data() + 1, values.data(), n).ok());
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), expected.size()), 0) << row["type"];
  }
  for (int i = 0; i <= static_cast<int>(StoredDType::kBool); ++i) {
    const auto dtype = static_cast<StoredDType>(i);
    EXPECT_EQ(IsDequantizable(dtype), types.contains(std::string(DTypeName(dtype))))
        << DTypeName(dtype);
  }
}

TEST(DequantizeTest, RefusesByName) {
  float dst[256];
  const std::vector<std::byte> src(1024);
  const auto status = DequantizeRow(StoredDType::kF64, src.data(), dst, 100);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("F64"), absl::string_view::npos);
  for (const StoredDType dtype : {StoredDType::kQ4_0, StoredDType::kQ5_1, StoredDType::kQ6_K}) {
    EXPECT_EQ(DequantizeRow(dtype, src.data(), dst, 33).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton
