#include "tools/eval/eval_command.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/scd/codec.h"
#include "common/tokenizer/model_tokenizer.h"
#include "common/weights/model_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_codec.h"
#include "tests/support/tiny_model.h"

namespace baton::tools {
namespace {

using testing::HasSubstr;

struct Ran {
  int code;
  std::string out;
  std::string err;
};

Ran Evaluated(std::vector<std::string> words) {
  words.insert(words.begin(), "baton-eval");
  std::vector<const char*> argv;
  for (const std::string& w : words) argv.push_back(w.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Ran ran;
  ran.code = RunEval(static_cast<int>(argv.size()), argv.data());
  ran.out = testing::internal::GetCapturedStdout();
  ran.err = testing::internal::GetCapturedStderr();
  return ran;
}

class EvalCommandTest : public testing::Test {
 protected:
  EvalCommandTest() {
    WriteTinyLlama(dir_.File("base"));
    WriteTinyLlama(dir_.File("tuned"), {.seed = 2});
    std::string text;
    for (int i = 0; i < 1000; ++i) text += static_cast<char>('!' + i * i % 90);
    dir_.Write("text.txt", text);
    dir_.Write("q.jsonl", R"({"context": "it is here", "question": "where?", "answer": "here"})"
                          "\n");
    const auto source = ModelSource::Open(dir_.File("base"));
    const Codec codec = TinyCodec(dir_.File("base"), CodeSource::kKv, dir_.File("tuned"),
                                  (*ReadModelTokenizer(**source))->digest());
    const absl::Status saved = SaveCodec(codec, dir_.File("tuned.safetensors"));
    EXPECT_TRUE(saved.ok()) << saved;
  }
  std::vector<std::string> Words(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"scd",
                                      "--producer",
                                      dir_.File("base"),
                                      "--consumer",
                                      dir_.File("tuned"),
                                      "--codec",
                                      dir_.File("tuned.safetensors"),
                                      "--data",
                                      dir_.File("text.txt"),
                                      "--out",
                                      dir_.File("out"),
                                      "--prefix",
                                      "96",
                                      "--threads",
                                      "1",
                                      "--quick"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(dir_.File(name));
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  TempDir dir_;
};

TEST_F(EvalCommandTest, LeavesTablesForPeopleAndPrograms) {
  const Ran ran = Evaluated(Words({"--questions", dir_.File("q.jsonl")}));
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("reuse:tuned"));
  EXPECT_THAT(ran.out, HasSubstr("## Questions: all"));
  EXPECT_THAT(ran.err, HasSubstr("answering questions"));
  const auto json = nlohmann::json::parse(Read("out/eval.json"));
  EXPECT_EQ(json["settings"]["prefix"], 96);
  EXPECT_EQ(json["texts"]["questions"]["form"], "chatml");
  EXPECT_EQ(json["pair"]["codecs"][0]["path"], dir_.File("tuned.safetensors"));
  EXPECT_THAT(ran.out, HasSubstr(Read("out/eval.md")));
  EXPECT_THAT(Read("out/eval.html"), HasSubstr("<svg"));
}

TEST_F(EvalCommandTest, WhatIsWrongIsSaid) {
  EXPECT_EQ(Evaluated({}).code, 2);
  EXPECT_EQ(Evaluated({"scd"}).code, 2);
  EXPECT_EQ(Evaluated(Words({"--full"})).code, 2);
  Ran ran = Evaluated(Words({"--chat-template", "none"}));
  EXPECT_EQ(ran.code, 0) << ran.err;
  ran = Evaluated(Words({"--adapter", dir_.File("none")}));
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr(dir_.File("none")));
  auto words = Words();
  words[4] = dir_.File("base");
  ran = Evaluated(words);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("tuned.safetensors: consumer_weights: "));
  words = Words({"--questions", dir_.File("text.txt")});
  EXPECT_THAT(Evaluated(words).err, HasSubstr("text.txt: not a .jsonl file"));
  words = Words();
  words[6] = dir_.File("text.txt");
  EXPECT_THAT(Evaluated(words).err, HasSubstr("text.txt"));
  words = Words();
  words[10] = dir_.File("text.txt");
  EXPECT_THAT(Evaluated(words).err, HasSubstr("cannot be made a folder"));
}

}  // namespace
}  // namespace baton::tools
