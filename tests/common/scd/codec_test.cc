#include "common/scd/codec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

namespace baton {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Two layers: source h of width 6, [K | V] of width 4; ranks 3 and 1.
Codec Small() {
  Codec codec;
  codec.identity = {.producer_weights = "aa",
                    .consumer_weights = "bb",
                    .tokenizer = "cc",
                    .source = CodeSource::kHidden,
                    .layers = 2,
                    .hidden = 6,
                    .kv_heads = 1,
                    .head_dim = 2};
  CodecLayer first;
  first.mean = {0, 1, 2, 3, 4, 5};
  for (int i = 0; i < 18; ++i) first.encoder.push_back(0.5f * static_cast<float>(i));
  first.bits = {2, 1, 3};
  first.importance = {4, 2, 2};
  first.levels = {-2, -1, 1, 2, -0.5f, 0.5f, -4, -3, -2, -1, 0, 1, 2, 3};
  for (int i = 0; i < 12; ++i) first.decoder.push_back(0.25f * static_cast<float>(i) - 1);
  first.offset = {1, 2, 3, 4};
  CodecLayer second;
  second.mean.resize(6);
  second.encoder.resize(6, 0.5f);
  second.bits = {1};
  second.importance = {1};
  second.levels = {-1, 1};
  second.decoder = {1, 2, 3, 4};
  second.offset = {4, 3, 2, 1};
  codec.layers = {first, second};
  codec.report = R"({"chosen":"closed"})";
  return codec;
}

// The same with its first layer patched: [hidden] is 6, and 2 * rank is 6 too.
Codec Patched(bool with_mlp = true) {
  Codec codec = Small();
  CodecLayer& layer = codec.layers[0];
  layer.kind = LayerKind::kPatch;
  layer.decoder.clear();
  for (int i = 0; i < 18; ++i) layer.decoder.push_back(0.25f * static_cast<float>(i) - 1);
  layer.offset = {1, 2, 3, 4, 5, 6};
  for (int i = 0; with_mlp && i < 18; ++i) layer.mlp_in.push_back(0.5f - static_cast<float>(i));
  for (int i = 0; with_mlp && i < 36; ++i) layer.mlp_out.push_back(0.125f * static_cast<float>(i));
  return codec;
}

// The same with two further layers that are a run: the stream of [6] in 2 components.
Codec WithRun(Codec codec = Small()) {
  codec.identity.layers = 4;
  CodecLayer stream;
  stream.kind = LayerKind::kStream;
  stream.mean = {5, 4, 3, 2, 1, 0};
  for (int i = 0; i < 12; ++i) stream.encoder.push_back(0.125f * static_cast<float>(i));
  stream.bits = {1, 2};
  stream.importance = {3, 1};
  stream.levels = {-1, 1, -2, -1, 1, 2};
  for (int i = 0; i < 12; ++i) stream.decoder.push_back(0.5f * static_cast<float>(i) - 2);
  stream.offset = {6, 5, 4, 3, 2, 1};
  CodecLayer native;
  native.kind = LayerKind::kNative;
  codec.layers.push_back(stream);
  codec.layers.push_back(native);
  return codec;
}

TEST(CodecTest, ARunIsKept) {
  const TempDir dir;
  for (const bool patched : {false, true}) {
    for (const CodecStorage storage : {CodecStorage::kF32, CodecStorage::kInt8}) {
      Codec codec = WithRun(patched ? Patched() : Small());
      if (storage == CodecStorage::kInt8) RoundToInt8(codec);
      const std::string path = dir.File("run.safetensors");
      ASSERT_TRUE(SaveCodec(codec, path, storage).ok());
      const auto loaded = LoadCodec(path);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_EQ(loaded->version(), 3);
      EXPECT_EQ(loaded->run(), (LayerRun{2, 4}));
      EXPECT_EQ(loaded->patched(), patched);
      EXPECT_EQ(loaded->layers[2].kind, LayerKind::kStream);
      EXPECT_EQ(loaded->layers[2].decoder, codec.layers[2].decoder);
      EXPECT_EQ(loaded->layers[3].kind, LayerKind::kNative);
      EXPECT_EQ(loaded->layers[3].rank(), 0);
      EXPECT_EQ(loaded->Digest(), codec.Digest());
      EXPECT_DOUBLE_EQ(loaded->bytes_per_token(), (7.0 + 3.0) / 8);
    }
  }
  EXPECT_TRUE(Small().run().empty());
}

TEST(CodecTest, WhichLayerCodesTheStreamIsPartOfTheEncoder) {
  // The same numbers: with two components of six numbers, K and V of width 3 would fit too.
  Codec stream = WithRun();
  stream.layers.pop_back();
  Codec other = stream;
  other.layers[2].kind = LayerKind::kPatch;
  EXPECT_NE(stream.EncoderDigest(), other.EncoderDigest());
  EXPECT_NE(stream.EncoderDigest(), WithRun().EncoderDigest());
}

// Written down when there were no runs yet: codes of stored prefixes keep their names.
TEST(CodecTest, DigestsStayWhatTheyWere) {
  const auto reuse = LoadCodec(TestDataDir() + "/codec/codec.safetensors");
  const auto patch = LoadCodec(TestDataDir() + "/codec/patch.safetensors");
  ASSERT_TRUE(reuse.ok() && patch.ok());
  EXPECT_EQ(reuse->EncoderDigest(), "8ab8dd052dd2c56d205f586e4e768673");
  EXPECT_EQ(reuse->Digest(), "bde8c259247f912d2b1496dd59a9d2e1");
  EXPECT_EQ(patch->EncoderDigest(), "8ab8dd052dd2c56d205f586e4e768673");
  EXPECT_EQ(patch->Digest(), "e1d574e5df6c180204f644d7bf004728");
}

TEST(CodecTest, PatchedLayersAreKept) {
  const TempDir dir;
  for (const bool with_mlp : {false, true}) {
    for (const CodecStorage storage : {CodecStorage::kF32, CodecStorage::kInt8}) {
      Codec codec = Patched(with_mlp);
      if (storage == CodecStorage::kInt8) RoundToInt8(codec);
      const std::string path = dir.File("patched.safetensors");
      ASSERT_TRUE(SaveCodec(codec, path, storage).ok());
      const auto loaded = LoadCodec(path);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_EQ(loaded->version(), 2);
      EXPECT_TRUE(loaded->patched());
      EXPECT_EQ(loaded->layers[0].kind, LayerKind::kPatch);
      EXPECT_EQ(loaded->layers[1].kind, LayerKind::kReuse);
      EXPECT_EQ(loaded->layers[0].mlp_in, codec.layers[0].mlp_in);
      EXPECT_EQ(loaded->layers[0].mlp_out, codec.layers[0].mlp_out);
      EXPECT_EQ(loaded->Digest(), codec.Digest());
    }
  }
}

TEST(CodecTest, Int8LosesNothingOfWhatWasRounded) {
  const TempDir dir;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 50; ++round) {
    Codec codec = Small();
    for (CodecLayer& layer : codec.layers) {
      for (auto* matrix : {&layer.encoder, &layer.decoder}) {
        for (float& x : *matrix) x = normal(random);
      }
    }
    const Codec before = codec;
    RoundToInt8(codec);
    for (std::size_t i = 0; i < 18; ++i) {
      float largest = 0;  // of its row of 6
      for (std::size_t j = i / 6 * 6; j < i / 6 * 6 + 6; ++j) {
        largest = std::max(largest, std::abs(before.layers[0].encoder[j]));
      }
      EXPECT_NEAR(codec.layers[0].encoder[i], before.layers[0].encoder[i], largest / 250);
    }
    const std::string path = dir.File("int8.safetensors");
    ASSERT_TRUE(SaveCodec(codec, path, CodecStorage::kInt8).ok());
    const auto loaded = LoadCodec(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->Digest(), codec.Digest());
    Codec again = codec;
    RoundToInt8(again);
    EXPECT_EQ(again.Digest(), codec.Digest());
  }
}

TEST(CodecTest, ARowOfZerosStaysOne) {
  Codec codec = Small();
  std::fill(codec.layers[0].encoder.begin(), codec.layers[0].encoder.begin() + 6, 0.0f);
  RoundToInt8(codec);
  EXPECT_EQ(codec.layers[0].encoder[3], 0);
  EXPECT_TRUE(CheckCodec(codec).ok());
}

TEST(CodecTest, FileHoldsEverything) {
  const TempDir dir;
  const std::string path = dir.File("codec.safetensors");
  const Codec codec = Small();
  ASSERT_TRUE(SaveCodec(codec, path).ok());
  const auto loaded = LoadCodec(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->identity.producer_weights, "aa");
  EXPECT_EQ(loaded->identity.consumer_weights, "bb");
  EXPECT_EQ(loaded->identity.tokenizer, "cc");
  EXPECT_EQ(loaded->identity.source, CodeSource::kHidden);
  EXPECT_EQ(loaded->identity.layers, 2);
  EXPECT_EQ(loaded->identity.hidden, 6);
  EXPECT_EQ(loaded->identity.kv_heads, 1);
  EXPECT_EQ(loaded->identity.head_dim, 2);
  EXPECT_EQ(loaded->report, codec.report);
  ASSERT_EQ(loaded->layers.size(), 2U);
  for (std::size_t l = 0; l < 2; ++l) {
    const CodecLayer& got = loaded->layers[l];
    const CodecLayer& want = codec.layers[l];
    EXPECT_EQ(got.mean, want.mean);
    EXPECT_EQ(got.encoder, want.encoder);
    EXPECT_EQ(got.bits, want.bits);
    EXPECT_EQ(got.importance, want.importance);
    EXPECT_EQ(got.levels, want.levels);
    EXPECT_EQ(got.decoder, want.decoder);
    EXPECT_EQ(got.offset, want.offset);
  }
  EXPECT_EQ(loaded->Digest(), codec.Digest());
  EXPECT_DOUBLE_EQ(loaded->bytes_per_token(), 7.0 / 8);
}

TEST(CodecTest, EncoderDigestCoversWhatMakesCodesOnly) {
  const Codec codec = Small();
  const auto differs = [&](const std::function<void(Codec&)>& change) {
    Codec other = Small();
    change(other);
    return std::pair(other.EncoderDigest() != codec.EncoderDigest(),
                     other.Digest() != codec.Digest());
  };
  const std::pair both(true, true), decoder_only(false, true), neither(false, false);
  EXPECT_EQ(differs([](Codec& c) { c.identity.producer_weights = "x"; }), both);
  EXPECT_EQ(differs([](Codec& c) { c.identity.tokenizer = "x"; }), both);
  EXPECT_EQ(differs([](Codec& c) { c.layers[0].mean[0] = 9; }), both);
  EXPECT_EQ(differs([](Codec& c) { c.layers[0].encoder[7] = 9; }), both);
  EXPECT_EQ(differs([](Codec& c) { c.layers[0].levels[3] = 9; }), both);
  EXPECT_EQ(differs([](Codec& c) { c.layers[0].importance[0] = 9; }), both);
  EXPECT_EQ(differs([](Codec& c) { c.identity.consumer_weights = "x"; }), decoder_only);
  EXPECT_EQ(differs([](Codec& c) { c.layers[0].decoder[2] = 9; }), decoder_only);
  EXPECT_EQ(differs([](Codec& c) { c.layers[1].offset[2] = 9; }), decoder_only);
  EXPECT_EQ(differs([](Codec& c) { c.report = "{}"; }), neither);
  EXPECT_EQ(differs([](Codec& c) { c = Patched(); }), decoder_only);
  EXPECT_NE(Patched(false).Digest(), Patched().Digest());
}

TEST(CodecTest, ConsumerDigestNamesModelAndAdapter) {
  EXPECT_EQ(ConsumerWeightsDigest("base", ""), "base");
  EXPECT_EQ(ConsumerWeightsDigest("base", "a").size(), 32U);
  EXPECT_NE(ConsumerWeightsDigest("base", "a"), ConsumerWeightsDigest("base", "b"));
  EXPECT_NE(ConsumerWeightsDigest("base", "a"), ConsumerWeightsDigest("other", "a"));
}

struct Wrong {
  const char* named;  // in the message
  std::function<void(Codec&)> change;
};

TEST(CodecTest, WrongFieldsAreNamed) {
  const float nan = std::nanf("");
  const std::vector<Wrong> cases = {
      {"layers: 0", [](Codec& c) { c.identity.layers = 0; }},
      {"layers: 2, expected 3", [](Codec& c) { c.identity.layers = 3; }},
      {"hidden: -1", [](Codec& c) { c.identity.hidden = -1; }},
      {"kv_heads: 70000", [](Codec& c) { c.identity.kv_heads = 70000; }},
      {"kv_heads * head_dim", [](Codec& c) { c.identity.kv_heads = c.identity.head_dim = 65000; }},
      {"producer_weights: empty", [](Codec& c) { c.identity.producer_weights.clear(); }},
      {"consumer_weights: empty", [](Codec& c) { c.identity.consumer_weights.clear(); }},
      {"tokenizer: empty", [](Codec& c) { c.identity.tokenizer.clear(); }},
      {"layer 0: bits: 5", [](Codec& c) { c.layers[0].bits[1] = 5; }},
      {"layer 0: bits: 0", [](Codec& c) { c.layers[0].bits[1] = 0; }},
      {"layer 0: rank: 4097", [](Codec& c) { c.layers[0].bits.assign(4097, 1); }},
      {"layer 1: rank: 0", [](Codec& c) { c.layers[1].bits.clear(); }},
      {"layer 0: mean: 5 numbers, expected 6", [](Codec& c) { c.layers[0].mean.pop_back(); }},
      {"layer 0: encoder: 17 numbers", [](Codec& c) { c.layers[0].encoder.pop_back(); }},
      {"layer 0: importance: 2 numbers", [](Codec& c) { c.layers[0].importance.pop_back(); }},
      {"layer 0: levels: 13 numbers", [](Codec& c) { c.layers[0].levels.pop_back(); }},
      {"layer 0: decoder: 13 numbers", [](Codec& c) { c.layers[0].decoder.push_back(0); }},
      {"layer 1: offset: 3 numbers", [](Codec& c) { c.layers[1].offset.pop_back(); }},
      {"layer 0: decoder: not all", [&](Codec& c) { c.layers[0].decoder[0] = nan; }},
      {"layer 0: importance: does not fall", [](Codec& c) { c.layers[0].importance[2] = 3; }},
      {"layer 0: importance: not above 0", [](Codec& c) { c.layers[0].importance[2] = 0; }},
      {"layer 0: levels: those of component 1", [](Codec& c) { c.layers[0].levels[5] = -0.5f; }},
  };
  const std::vector<Wrong> patched = {
      {"layer 0: kind: patch; its codes are of source h",
       [](Codec& c) { c.identity.source = CodeSource::kKv; }},
      {"layer 0: decoder: 12 numbers, expected 18",
       [](Codec& c) { c.layers[0].decoder.resize(12); }},
      {"layer 0: offset: 4 numbers, expected 6", [](Codec& c) { c.layers[0].offset.resize(4); }},
      {"layer 0: mlp_in: 0 numbers, expected 18", [](Codec& c) { c.layers[0].mlp_in.clear(); }},
      {"layer 0: mlp_out: 35 numbers, expected 36",
       [](Codec& c) { c.layers[0].mlp_out.pop_back(); }},
      {"layer 0: mlp_in: not all", [&](Codec& c) { c.layers[0].mlp_in[0] = nan; }},
      {"layer 1: mlp_in: 2 numbers, expected 0",
       [](Codec& c) {
         c.layers[1].mlp_in = {1, 1};
       }},
  };
  const std::vector<Wrong> runs = {
      {"layer 3: kind: native; there is no run", [](Codec& c) { c.layers[2] = c.layers[0]; }},
      {"layer 0: kind: native; the run is that of layers 2-3",
       [](Codec& c) { c.layers[0] = c.layers[3]; }},
      {"layer 4: kind: stream; the run is that of layers 2-3",
       [](Codec& c) {
         c.identity.layers = 5;
         c.layers.push_back(c.layers[2]);
       }},
      {"layer 0: kind: stream; its codes are of source h",
       [](Codec& c) {
         c.identity.source = CodeSource::kKv;
         c.identity.layers = 2;
         c.layers.erase(c.layers.begin(), c.layers.begin() + 2);
       }},
      {"layer 2: decoder: 8 numbers, expected 12", [](Codec& c) { c.layers[2].decoder.resize(8); }},
      {"layer 2: mlp_in: 8 numbers, expected 0", [](Codec& c) { c.layers[2].mlp_in.resize(8); }},
      {"layer 3: rank: 1, expected 0", [](Codec& c) { c.layers[3].bits = {1}; }},
      {"layer 3: offset: 4 numbers, expected 0", [](Codec& c) { c.layers[3].offset.resize(4); }},
  };
  const TempDir dir;
  std::vector<std::pair<Codec, Wrong>> all;
  for (const Wrong& wrong : cases) all.emplace_back(Small(), wrong);
  for (const Wrong& wrong : patched) all.emplace_back(Patched(), wrong);
  for (const Wrong& wrong : runs) all.emplace_back(WithRun(), wrong);
  for (auto& [codec, wrong] : all) {
    wrong.change(codec);
    const absl::Status status = CheckCodec(codec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.named;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.named));
    EXPECT_FALSE(SaveCodec(codec, dir.File("x.safetensors")).ok()) << wrong.named;
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

// The file with one run of bytes replaced by another of the same length.
std::string Edited(const std::string& path, const std::string& from, const std::string& to) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const std::size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ(from.size(), to.size());
  bytes.replace(at, from.size(), to);
  const std::string edited = path + ".edited.safetensors";
  std::ofstream(edited, std::ios::binary) << bytes;
  return edited;
}

TEST(CodecTest, WrongFilesAreNamed) {
  const TempDir dir;
  const std::string path = dir.File("codec.safetensors");
  ASSERT_TRUE(SaveCodec(Small(), path).ok());
  const auto message = [&](const std::string& from, const std::string& to) {
    const auto loaded = LoadCodec(Edited(path, from, to));
    EXPECT_FALSE(loaded.ok()) << to;
    return loaded.ok() ? "" : std::string(loaded.status().message());
  };
  EXPECT_THAT(message("\"baton-codec\"", "\"batonXcodec\""),
              AllOf(HasSubstr("codec.safetensors"), HasSubstr("format")));
  EXPECT_THAT(message("\"format_version\":\"1\"", "\"format_version\":\"7\""),
              HasSubstr("format_version: 7"));
  EXPECT_EQ(LoadCodec(Edited(path, "\"format_version\":\"1\"", "\"format_version\":\"7\""))
                .status()
                .code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_THAT(message("\"source\":\"h\"", "\"source\":\"x\""), HasSubstr("source: 'x'"));
  EXPECT_THAT(message("\"hidden\":\"6\"", "\"hidden\":\"s\""), HasSubstr("hidden: 's'"));
  EXPECT_THAT(message("\"hidden\":\"6\"", "\"hidden\":\"5\""), HasSubstr("layer 0: mean"));
  EXPECT_THAT(message("\"tokenizer\"", "\"tokenizes\""), HasSubstr("no 'tokenizer'"));
  EXPECT_THAT(message("layers.1.bits", "layers.9.bits"), HasSubstr("layers.1.bits"));
  const auto kinds = [&](const std::string& from, const std::string& to) {
    const std::string patched = dir.File("patched.safetensors");
    EXPECT_TRUE(SaveCodec(Patched(), patched).ok());
    const auto loaded = LoadCodec(Edited(patched, from, to));
    EXPECT_FALSE(loaded.ok()) << to;
    return loaded.ok() ? "" : std::string(loaded.status().message());
  };
  EXPECT_THAT(kinds("\"patch_layers\":\"0\"", "\"patch_layers\":\"2\""),
              HasSubstr("patch_layers: '2' are not ascending layers of 2"));
  EXPECT_THAT(kinds("\"patch_layers\":\"0\"", "\"patch_layers\":\"x\""),
              HasSubstr("patch_layers: 'x'"));
  EXPECT_THAT(kinds("\"patch_layers\":\"0\"", "\"patch_layers\":\"1\""),
              HasSubstr("tensors, expected"));
  EXPECT_THAT(kinds("\"patch_layers\"", "\"patch_lawyer\""), HasSubstr("no 'patch_layers'"));
  EXPECT_THAT(kinds("layers.0.mlp_in", "layers.0.mlp_on"), HasSubstr("layers.0.mlp_in"));
  // What version 1 calls a decoder is of another size.
  EXPECT_THAT(kinds("\"format_version\":\"2\"", "\"format_version\":\"1\""),
              HasSubstr("tensors, expected"));
  const auto runs = [&](const std::string& from, const std::string& to) {
    const std::string run = dir.File("run.safetensors");
    EXPECT_TRUE(SaveCodec(WithRun(Patched()), run).ok());
    const auto loaded = LoadCodec(Edited(run, from, to));
    EXPECT_FALSE(loaded.ok()) << to;
    return loaded.ok() ? "" : std::string(loaded.status().message());
  };
  EXPECT_THAT(runs("\"run_layers\":\"2-3\"", "\"run_layers\":\"2-4\""),
              HasSubstr("run_layers: '2-4' are not layers of 4"));
  EXPECT_THAT(runs("\"run_layers\":\"2-3\"", "\"run_layers\":\"3-2\""),
              HasSubstr("run_layers: '3-2' is not a run"));
  EXPECT_THAT(runs("\"run_layers\":\"2-3\"", "\"run_layers\":\"0-3\""),
              HasSubstr("run_layers: '0-3' holds 0 of patch_layers"));
  EXPECT_THAT(runs("\"run_layers\":\"2-3\"", "\"run_layers\":\"2-2\""),
              HasSubstr("tensors, expected"));
  EXPECT_THAT(runs("\"run_layers\"", "\"fun_layers\""), HasSubstr("no 'run_layers'"));
  EXPECT_THAT(runs("\"format_version\":\"3\"", "\"format_version\":\"2\""),
              HasSubstr("tensors, expected"));
  EXPECT_EQ(LoadCodec(dir.File("none.safetensors")).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace baton
