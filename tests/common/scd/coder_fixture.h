// A small random codec with codes and K/V that NumPy made of it (tests/data/codec).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/scd/codec.h"
#include "common/weights/dequantize.h"
#include "common/weights/safetensors.h"
#include "gtest/gtest.h"
#include "kernels/executor.h"
#include "tests/support/test_data.h"

namespace baton {

class CoderFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    auto codec = LoadCodec(TestDataDir() + "/codec/codec.safetensors");
    ASSERT_TRUE(codec.ok()) << codec.status();
    codec_ = *std::move(codec);
    auto expected = SafetensorsFile::Open(TestDataDir() + "/codec/expected.safetensors");
    ASSERT_TRUE(expected.ok()) << expected.status();
    expected_ = *std::move(expected);
  }

  std::vector<float> Floats(int layer, const std::string& name) const {
    const TensorView* view = expected_->Find(std::to_string(layer) + "." + name);
    std::vector<float> values(static_cast<std::size_t>(view->elements()));
    EXPECT_TRUE(DequantizeRow(view->dtype, view->data, values.data(), view->elements()).ok());
    return values;
  }
  std::vector<std::byte> Codes(int layer) const {
    const TensorView* view = expected_->Find(std::to_string(layer) + ".codes");
    return {view->data, view->data + view->nbytes};
  }

  Codec codec_;
  std::unique_ptr<SafetensorsFile> expected_;
  SerialExecutor executor_;
};

}  // namespace baton
