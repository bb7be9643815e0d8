// Ids are of smollm2_tokenizer.json; cases str-04 and str-05 of the shared evaluation data.
#include "common/tokenizer/detokenizer.h"

#include <chrono>

#include "gtest/gtest.h"
#include "tests/support/test_data.h"

namespace baton {
namespace {

class DetokenizerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = SharedDataDir() + "/tokenizers/smollm2_tokenizer.json";
    BATON_SKIP_WITHOUT(path);
    static const auto tokenizer = Tokenizer::FromJson(ReadFileOrEmpty(path));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = tokenizer->get();
  }

  std::vector<std::string> Deltas(const std::vector<int32_t>& ids) {
    Detokenizer detokenizer(*tokenizer_);
    std::vector<std::string> deltas;
    for (int32_t id : ids) deltas.push_back(detokenizer.Push(id));
    deltas.push_back(detokenizer.Flush());
    return deltas;
  }

  static std::string Join(const std::vector<std::string>& deltas) {
    std::string text;
    for (const std::string& delta : deltas) text += delta;
    return text;
  }

  const Tokenizer* tokenizer_ = nullptr;
};

TEST_F(DetokenizerTest, WholeCharactersOnly) {
  const std::vector<std::pair<std::vector<int32_t>, std::string>> cases = {
      {{10813, 242, 228}, "\U0001F60A"},
      {{10813, 235, 118, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117},
       "\U0001F468\u200d\U0001F469\u200d\U0001F467"},
      {{183, 220, 137, 181, 127, 134, 183, 220, 129}, "\uC0BC\uACB9\uC0B4"},
      {{7906, 240, 178, 239, 230}, "\u4e16\u754c"},
  };
  for (const auto& [ids, text] : cases) {
    const auto deltas = Deltas(ids);
    for (const std::string& delta : deltas) {
      EXPECT_EQ(FirstInvalidUtf8(delta), std::nullopt);
      EXPECT_EQ(delta.find("\uFFFD"), std::string::npos);
    }
    EXPECT_EQ(Join(deltas), text);
    EXPECT_EQ(Join(deltas), *tokenizer_->Decode(ids));
  }
  EXPECT_EQ(Deltas({10813, 242, 228}), (std::vector<std::string>{"", "", "\U0001F60A", ""}));
}

TEST_F(DetokenizerTest, RealReplacementCharacterIsDeliveredAtOnce) {
  Detokenizer detokenizer(*tokenizer_);
  for (int i = 0; i < 400; ++i) ASSERT_EQ(detokenizer.Push(24211), "\uFFFD");
}

TEST_F(DetokenizerTest, HopelessBytesAreReplacedAtOnce) {
  Detokenizer detokenizer(*tokenizer_);
  for (int i = 0; i < 400; ++i) ASSERT_EQ(detokenizer.Push(228), "\uFFFD");
  // A character cut short is replaced by the token that shows it.
  EXPECT_EQ(detokenizer.Push(10813), "");
  EXPECT_EQ(detokenizer.Push(33203), "\uFFFDDEF");
}

TEST_F(DetokenizerTest, FlushReplacesWhatIsHeldBack) {
  EXPECT_EQ(Deltas({33203, 10813, 242}), (std::vector<std::string>{"DEF", "", "", "\uFFFD"}));
}

TEST_F(DetokenizerTest, SpecialTokensGiveNoTextUnlessAsked) {
  EXPECT_EQ(Join(Deltas({1, 33203, 2})), "DEF");
  Detokenizer all(*tokenizer_, /*skip_special=*/false);
  EXPECT_EQ(all.Push(2), "<|im_end|>");
  EXPECT_EQ(all.Push(-1), "");
  EXPECT_EQ(all.Push(1 << 30), "");
}

TEST_F(DetokenizerTest, EveryTextStreamsToItself) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "Caf\u00e9 \u4e16\u754c \U0001F30D \u0e01\u0e33 done.\n";
  const auto ids = tokenizer_->Encode(text);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(Join(Deltas(*ids)), text);
}

TEST_F(DetokenizerTest, WorkPerTokenIsBounded) {
  const auto seconds = [&](size_t n) {
    const auto begin = std::chrono::steady_clock::now();
    Detokenizer detokenizer(*tokenizer_);
    size_t bytes = 0;
    for (size_t i = 0; i < n; ++i) bytes += detokenizer.Push(228).size();
    EXPECT_EQ(bytes, 3 * n);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  seconds(10'000);
  EXPECT_LT(seconds(1'000'000), 100 * 10 * seconds(10'000) + 1.0);
}

}  // namespace
}  // namespace baton
