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
    Load("codec.safetensors", codec_);
    Open("expected.safetensors", expected_);
    Load("patch.safetensors", patch_);
    Open("patch_expected.safetensors", patch_expected_);
  }

  std::vector<float> Floats(int layer, const std::string& name) const {
    return FloatsOf(*expected_, layer, name);
  }
  static std::vector<float> FloatsOf(const SafetensorsFile& file, int layer,
                                     const std::string& name) {
    const TensorView* view = file.Find(std::to_string(layer) + "." + name);
    std::vector<float> values(static_cast<std::size_t>(view->elements()));
    EXPECT_TRUE(DequantizeRow(view->dtype, view->data, values.data(), view->elements()).ok());
    return values;
  }
  // The codec of two layers as one of a run of both, whose stream has the code of the first.
  Codec RunOfBoth() const {
    Codec codec = codec_;
    CodecLayer& stream = codec.layers[0];
    stream.kind = LayerKind::kStream;
    const auto hidden = static_cast<std::size_t>(codec.identity.hidden);
    stream.decoder.resize(hidden * static_cast<std::size_t>(stream.rank()));
    stream.offset.resize(hidden);
    codec.layers[1] = CodecLayer();
    codec.layers[1].kind = LayerKind::kNative;
    EXPECT_TRUE(CheckCodec(codec).ok());
    return codec;
  }
  std::vector<std::byte> Codes(int layer) const {
    const TensorView* view = expected_->Find(std::to_string(layer) + ".codes");
    return {view->data, view->data + view->nbytes};
  }

  Codec codec_;
  std::unique_ptr<SafetensorsFile> expected_;
  Codec patch_;  // the same codes, with patched layers
  std::unique_ptr<SafetensorsFile> patch_expected_;
  SerialExecutor executor_;

 private:
  static void Load(const std::string& name, Codec& to) {
    auto codec = LoadCodec(TestDataDir() + "/codec/" + name);
    ASSERT_TRUE(codec.ok()) << codec.status();
    to = *std::move(codec);
  }
  static void Open(const std::string& name, std::unique_ptr<SafetensorsFile>& to) {
    auto file = SafetensorsFile::Open(TestDataDir() + "/codec/" + name);
    ASSERT_TRUE(file.ok()) << file.status();
    to = *std::move(file);
  }
};

}  // namespace baton
