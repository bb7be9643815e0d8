#include "tools/calibrate/calibrate_command.h"

#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "common/scd/codec.h"
#include "common/weights/model_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::tools {
namespace {

using testing::HasSubstr;

struct Ran {
  int code;
  std::string out;
  std::string err;
};

Ran Calibrated(std::vector<std::string> words) {
  words.insert(words.begin(), "baton-calibrate");
  std::vector<const char*> argv;
  for (const std::string& w : words) argv.push_back(w.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Ran ran;
  ran.code = RunCalibrate(static_cast<int>(argv.size()), argv.data());
  ran.out = testing::internal::GetCapturedStdout();
  ran.err = testing::internal::GetCapturedStderr();
  return ran;
}

class CalibrateCommandTest : public testing::Test {
 protected:
  CalibrateCommandTest() {
    WriteTinyLlama(dir_.File("base"));
    WriteTinyLlama(dir_.File("tuned"), {.seed = 2});
    std::string text;
    for (int i = 0; i < 4000; ++i) text += static_cast<char>('!' + i * i % 90);
    dir_.Write("text.txt", text);
  }
  std::vector<std::string> Words(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"--producer", dir_.File("base"),
                                      "--consumer", dir_.File("tuned"),
                                      "--data",     dir_.File("text.txt"),
                                      "--out",      dir_.File("codec.safetensors"),
                                      "--prefix",   "64",
                                      "--held-out", "2",
                                      "--threads",  "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  TempDir dir_;
};

TEST_F(CalibrateCommandTest, WritesACodecOfBothModels) {
  const Ran ran = Calibrated(Words({"--profile", "economy"}));
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("uncoded"));
  EXPECT_THAT(ran.out, HasSubstr("codec.safetensors"));
  EXPECT_THAT(ran.err, HasSubstr("gathering statistics"));
  const auto codec = LoadCodec(dir_.File("codec.safetensors"));
  ASSERT_TRUE(codec.ok()) << codec.status();
  EXPECT_EQ(codec->identity.producer_weights,
            (*ModelSource::Open(dir_.File("base")))->WeightsDigest());
  EXPECT_EQ(codec->identity.consumer_weights,
            (*ModelSource::Open(dir_.File("tuned")))->WeightsDigest());
  EXPECT_LE(codec->bytes_per_token(), 384.0 / 12);
}

TEST_F(CalibrateCommandTest, SeveralConsumersGetCodecsOfOneCode) {
  WriteTinyLlama(dir_.File("more"), {.seed = 3});
  std::filesystem::create_directory(dir_.File("codecs"));
  auto words = Words({"--consumer", dir_.File("more") + "/", "--epochs", "1"});
  words[7] = dir_.File("codecs");
  const Ran ran = Calibrated(words);
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("tuned\n"));
  EXPECT_THAT(ran.out, HasSubstr("more\n"));
  EXPECT_THAT(ran.err, HasSubstr("training, epoch 1 of 1 (more)"));
  const auto tuned = LoadCodec(dir_.File("codecs/tuned.safetensors"));
  const auto more = LoadCodec(dir_.File("codecs/more.safetensors"));
  ASSERT_TRUE(tuned.ok()) << tuned.status();
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_EQ(tuned->EncoderDigest(), more->EncoderDigest());
  EXPECT_EQ(more->identity.consumer_weights,
            (*ModelSource::Open(dir_.File("more")))->WeightsDigest());
  // Nothing else is left there.
  const std::filesystem::directory_iterator files(dir_.File("codecs"));
  EXPECT_EQ(std::distance(begin(files), end(files)), 2);
}

TEST_F(CalibrateCommandTest, WhatIsWrongWithSeveralConsumersIsSaid) {
  const auto failed = [&](const std::vector<std::string>& more, const std::string& out) {
    auto words = Words(more);
    words[7] = dir_.File(out);
    const Ran ran = Calibrated(words);
    EXPECT_EQ(ran.code, 1);
    return ran.err;
  };
  EXPECT_THAT(failed({"--adapter", "a/lora", "b/lora/"}, ""),
              HasSubstr("a/lora and b/lora/ would both be named \"lora\""));
  EXPECT_THAT(failed({"--consumer", dir_.File("base"), "--adapter", "a", "b", "c"}, ""),
              HasSubstr("--adapter: 3 of them for 2 of --consumer"));
  EXPECT_THAT(failed({"--adapter", "a", "b"}, "codec.safetensors"),
              HasSubstr("codec.safetensors: not a folder, which the codecs of 2 consumers go to"));
  EXPECT_THAT(failed({"--adapter", "none", dir_.File("missing")}, ""),
              HasSubstr(dir_.File("missing")));
  EXPECT_THAT(failed({"--consumer", dir_.File("base"), "--patch", "2"}, ""),
              HasSubstr("patch: patched layers have codes of their own"));
}

TEST_F(CalibrateCommandTest, WhatIsWrongIsSaid) {
  EXPECT_EQ(Calibrated({}).code, 2);
  EXPECT_EQ(Calibrated(Words({"--source", "x"})).code, 2);
  EXPECT_EQ(Calibrated(Words({"--profile", "quality", "--bytes-per-token", "40"})).code, 2);
  EXPECT_THAT(Calibrated(Words({"--run", "0-1,9"})).err,
              HasSubstr("--run: '9' is not a run of layers as in 9-23"));
  EXPECT_THAT(Calibrated(Words({"--patch", "3,x"})).err, HasSubstr("--patch 3,x: neither"));
  Ran ran = Calibrated(Words({"--bytes-per-token", "4000"}));
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("bytes_per_token: 4000"));
  ran = Calibrated(Words({"--adapter", dir_.File("none")}));
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr(dir_.File("none")));

  WriteTinyLlama(dir_.File("small"), {.layers = 2});
  auto words = Words();
  words[3] = dir_.File("small");
  ran = Calibrated(words);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("layers: 3 at the producer, 2 at the consumer"));

  WriteTinyLlama(dir_.File("other"), {.vocab = 500});
  words[3] = dir_.File("other");
  ran = Calibrated(words);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("tokenizer"));

  words = Words();
  words[7] = dir_.File("none/codec.safetensors");
  ran = Calibrated(words);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("none/codec.safetensors"));
}

}  // namespace
}  // namespace baton::tools
