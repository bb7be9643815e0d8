#include <string>

#include "CLI/CLI.hpp"
#include "common/scd/codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_dir.h"
#include "tools/commands.h"

namespace baton::tools {
namespace {

using testing::HasSubstr;

Codec Small() {
  Codec codec;
  codec.identity = {.producer_weights = "aa",
                    .consumer_weights = "bb",
                    .tokenizer = "cc",
                    .source = CodeSource::kKv,
                    .layers = 1,
                    .hidden = 6,
                    .kv_heads = 1,
                    .head_dim = 2};
  CodecLayer layer;
  layer.mean.resize(4);
  layer.encoder.resize(8, 0.5f);
  layer.bits = {2, 1};
  layer.importance = {2, 1};
  layer.levels = {-2, -1, 1, 2, -1, 1};
  layer.decoder.resize(8, 1.0f);
  layer.offset.resize(4);
  codec.layers = {layer};
  codec.report = R"({"chosen":"closed","candidates":[{"name":"raw","kl":0.25}]})";
  return codec;
}

struct Ran {
  int code = -1;
  std::string out;
  std::string err;
};

Ran Inspect(const std::string& arguments) {
  CLI::App app;
  Ran ran;
  AddInspectCommand(app, ran.code);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  app.parse("inspect " + arguments);
  ran.out = testing::internal::GetCapturedStdout();
  ran.err = testing::internal::GetCapturedStderr();
  return ran;
}

TEST(InspectTest, CodecIsShownWithItsReport) {
  const TempDir dir;
  const std::string path = dir.File("codec.safetensors");
  const Codec codec = Small();
  ASSERT_TRUE(SaveCodec(codec, path).ok());
  const Ran text = Inspect(path);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("digest: " + codec.Digest()));
  EXPECT_THAT(text.out, HasSubstr("kind_of_layers: [\"reuse\"]"));
  EXPECT_THAT(text.out, HasSubstr("rank_of_layers: [2]"));
  EXPECT_THAT(text.out, HasSubstr("chosen: \"closed\""));
  EXPECT_THAT(text.out, HasSubstr("{\"name\":\"raw\",\"kl\":0.25}"));

  const Ran ran = Inspect(path + " --json");
  const auto json = nlohmann::json::parse(ran.out);
  EXPECT_EQ(json["encoder_digest"], codec.EncoderDigest());
  EXPECT_EQ(json["source"], "kv");
  EXPECT_EQ(json["bytes_per_token"], 0.375);
  EXPECT_EQ(json["part_of_raw_fp16"], 0.375 / 8);
  EXPECT_EQ(json["report"]["candidates"][0]["kl"], 0.25);
}

TEST(InspectTest, PatchedLayersAreNamed) {
  const TempDir dir;
  const std::string path = dir.File("codec.safetensors");
  Codec codec = Small();
  codec.identity.source = CodeSource::kHidden;
  CodecLayer& layer = codec.layers[0];
  layer.kind = LayerKind::kPatch;
  layer.mean.resize(6);
  layer.encoder.resize(12, 0.5f);
  layer.decoder.resize(12, 1.0f);
  layer.offset.resize(6);
  layer.mlp_in.resize(8);
  layer.mlp_out.resize(24);
  ASSERT_TRUE(SaveCodec(codec, path).ok());
  const Ran text = Inspect(path);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("version: 2"));
  EXPECT_THAT(text.out, HasSubstr("kind_of_layers: [\"patch+mlp\"]"));
}

TEST(InspectTest, ARunOfLayersIsShown) {
  const TempDir dir;
  const std::string path = dir.File("codec.safetensors");
  Codec codec = Small();
  codec.identity.source = CodeSource::kHidden;
  codec.identity.layers = 2;
  CodecLayer& stream = codec.layers[0];
  stream.kind = LayerKind::kStream;
  stream.mean.resize(6);
  stream.encoder.resize(12, 0.5f);
  stream.decoder.resize(12, 1.0f);
  stream.offset.resize(6);
  codec.layers.emplace_back().kind = LayerKind::kNative;
  ASSERT_TRUE(SaveCodec(codec, path).ok());
  const Ran text = Inspect(path);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("version: 3"));
  EXPECT_THAT(text.out, HasSubstr("run: 0-1"));
  EXPECT_THAT(text.out, HasSubstr("kind_of_layers: [\"stream\",\"native\"]"));
}

TEST(InspectTest, CodecWithAStrangeReportIsShownWithoutIt) {
  const TempDir dir;
  const std::string path = dir.File("codec.safetensors");
  for (const char* report :
       {"", "no JSON", "[1]", R"({"candidates":7})", R"({"candidates":[7]})"}) {
    Codec codec = Small();
    codec.report = report;
    ASSERT_TRUE(SaveCodec(codec, path).ok());
    EXPECT_EQ(Inspect(path).code, 0) << report;
    EXPECT_EQ(Inspect(path + " --json").code, 0) << report;
  }
}

TEST(InspectTest, WhatIsNoCodecIsNamed) {
  const TempDir dir;
  dir.Write("codec.safetensors", "not a codec");
  const Ran ran = Inspect(dir.File("codec.safetensors"));
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("codec.safetensors"));
}

}  // namespace
}  // namespace baton::tools
