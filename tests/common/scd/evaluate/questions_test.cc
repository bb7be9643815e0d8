#include "common/scd/evaluate/questions.h"

#include <memory>
#include <string>
#include <vector>

#include "common/tokenizer/model_tokenizer.h"
#include "common/weights/model_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace baton {
namespace {

using testing::HasSubstr;

class QuestionsTest : public testing::Test {
 protected:
  QuestionsTest() {
    WriteTinyLlama(dir_.File("model"));
    const auto source = ModelSource::Open(dir_.File("model"));
    tokenizer_ = *ReadModelTokenizer(**source);
    form_ = {.chat = *ChatTemplate::Recognise(*(*source)->chat_template()), .end = {kTinyImEnd}};
  }
  absl::StatusOr<QuestionSet> Read(const std::string& text, int min_prefix = 8,
                                   int max_tokens = 500) {
    dir_.Write("q.jsonl", text);
    return ReadQuestions(dir_.File("q.jsonl"), *tokenizer_, form_, min_prefix, max_tokens);
  }
  std::string Message(const std::string& text) {
    const auto set = Read(text);
    return set.ok() ? "" : std::string(set.status().message());
  }

  TempDir dir_;
  std::unique_ptr<Tokenizer> tokenizer_;
  AnswerForm form_;
};

const char* const kOne =
    R"({"context": " the <|im_end|> text ", "question": "who?", "answer": "me ", "skill": "s"})"
    "\n";
const char* const kTwo =
    R"({"context": "the <|im_end|> text", "question": "why?", "references": ["so", "thus"], "exact": true})"
    "\n";
const char* const kThree = R"({"context": "other", "question": "a", "answers": ["b"]})";

TEST_F(QuestionsTest, PromptIsTheChatTemplatesCutAfterTheContext) {
  const auto set = Read(std::string(kOne) + kTwo + "\n" + kThree);
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ(set->groups.size(), 2U);
  EXPECT_EQ(set->questions, 3);
  ASSERT_EQ(set->groups[0].questions.size(), 2U);
  for (const auto& [question, asked] :
       {std::pair(0, "the <|im_end|> text\n\nwho?"), std::pair(1, "the <|im_end|> text\n\nwhy?")}) {
    const Question& q = set->groups[0].questions[question];
    const ChatMessage message{.role = "user", .content = asked};
    const auto whole = EncodeChat(*tokenizer_, *form_.chat, {&message, 1});
    ASSERT_TRUE(whole.ok());
    std::vector<std::int32_t> joined = set->groups[0].prefix;
    joined.insert(joined.end(), q.suffix.begin(), q.suffix.end());
    EXPECT_EQ(joined, *whole);
    const auto start = tokenizer_->Decode(set->groups[0].prefix, {});
    EXPECT_THAT(*start, testing::EndsWith("user\nthe <|im_end|> text"));
  }
  const Question& first = set->groups[0].questions[0];
  EXPECT_EQ(first.skill, "s");
  EXPECT_EQ(first.answer, "me");
  EXPECT_EQ(first.references, std::vector<std::string>{"me "});
  EXPECT_FALSE(first.exact);
  EXPECT_EQ(first.answer_tokens, (std::vector<std::int32_t>{'m', 'e', kTinyImEnd}));
  const Question& second = set->groups[0].questions[1];
  EXPECT_EQ(second.answer, "so");
  EXPECT_EQ(second.references, (std::vector<std::string>{"so", "thus"}));
  EXPECT_TRUE(second.exact);
  EXPECT_EQ(set->groups[1].questions[0].skill, "all");
}

TEST_F(QuestionsTest, PlainFormAndLengths) {
  form_ = {};
  auto set = Read(std::string(kOne) + kThree, 6, 100);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->questions, 1);
  EXPECT_EQ(set->left_out, 1);  // "other" is shorter than six tokens
  const Question& q = set->groups[0].questions[0];
  EXPECT_EQ(*tokenizer_->Decode(q.suffix, {}), "\n\nwho?\n");
  EXPECT_EQ(q.answer_tokens.back(), '\n');
  EXPECT_THAT(Message(kThree).append(std::string(Read(kOne, 6, 10).status().message())),
              HasSubstr("no question with 6 tokens of context and 10 in all"));
}

TEST_F(QuestionsTest, DigestIsOfWhatIsAsked) {
  const std::string one = Read(kOne)->Digest();
  EXPECT_EQ(one, Read(kOne)->Digest());
  EXPECT_NE(one, Read(kTwo)->Digest());
}

TEST_F(QuestionsTest, ErrorsNameFileLineAndField) {
  EXPECT_THAT(Message("\n{}\n"), HasSubstr("q.jsonl:2: no \"context\""));
  EXPECT_THAT(Message("[]"), HasSubstr("q.jsonl:1: not a JSON object"));
  EXPECT_THAT(Message("{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(Message(R"({"context": "c"})"), HasSubstr("no \"question\""));
  EXPECT_THAT(Message(R"({"context": 1, "question": "q"})"),
              HasSubstr("\"context\" is not a string"));
  EXPECT_THAT(Message(R"({"context": "c", "question": "q"})"),
              HasSubstr("neither \"answer\" nor \"references\""));
  EXPECT_THAT(Message(R"({"context": "c", "question": "q", "references": []})"),
              HasSubstr("\"references\" is not a list of strings"));
  EXPECT_THAT(Message(R"({"context": "c", "question": "q", "answer": "a", "exact": "yes"})"),
              HasSubstr("\"exact\""));
  EXPECT_THAT(Message(""), HasSubstr("no question"));
  EXPECT_THAT(
      std::string(
          ReadQuestions(dir_.File("none.jsonl"), *tokenizer_, form_, 8, 100).status().message()),
      HasSubstr("none.jsonl"));
  EXPECT_THAT(std::string(ReadQuestions("x.csv", *tokenizer_, form_, 8, 100).status().message()),
              HasSubstr("x.csv: not a .jsonl file"));
}

}  // namespace
}  // namespace baton
