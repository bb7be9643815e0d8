#include "common/scd/calibrate/documents.h"

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace baton {
namespace {

using testing::HasSubstr;

const absl::StatusOr<std::optional<ChatTemplate>> kNoChat = std::optional<ChatTemplate>();

std::unique_ptr<Tokenizer> Bytes() {
  // 259 ids: bytes and special tokens, so a text has as many tokens as bytes.
  auto t = Tokenizer::FromJson(tiny_model_internal::TokenizerJson(259));
  if (!t.ok()) throw std::runtime_error(t.status().ToString());
  return *std::move(t);
}

std::string Message(const absl::StatusOr<DocumentSet>& set) {
  EXPECT_FALSE(set.ok());
  return set.ok() ? "" : std::string(set.status().message());
}

TEST(DocumentsTest, TextsAreCutAndRowsAreDocuments) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 250; ++i) text += static_cast<char>('a' + i % 26);
  dir.Write("a.txt", text);
  dir.Write("b.jsonl", "{\"context\":\"" + std::string(70, 'x') + "\",\"answer\":\"x\"}\n\n" +
                           "{\"text\":\"" + std::string(80, 'y') + "\"}\r\n" +
                           "{\"text\":\"short\"}\n{\"text\":\"" + std::string(80, 'y') + "\"}");
  const auto tokenizer = Bytes();
  const auto set =
      ReadDocuments({dir.File("a.txt"), dir.File("b.jsonl")}, *tokenizer, kNoChat, 100);
  ASSERT_TRUE(set.ok()) << set.status();
  // 250 bytes are 100, 100 and 50: the last is too short.
  ASSERT_EQ(set->documents.size(), 4U);
  EXPECT_EQ(*tokenizer->Decode(set->documents[1].tokens), text.substr(100, 100));
  EXPECT_EQ(*tokenizer->Decode(set->documents[2].tokens), std::string(70, 'x'));
  EXPECT_EQ(set->documents[3].file, 1U);
  EXPECT_EQ(set->files[0].documents, 2);
  EXPECT_EQ(set->files[0].tokens, 200);
  EXPECT_EQ(set->files[0].too_short, 1);
  EXPECT_EQ(set->files[1].documents, 2);
  EXPECT_EQ(set->files[1].too_short, 1);
  EXPECT_EQ(set->files[1].repeated, 1);
  EXPECT_EQ(set->Digest().size(), 32U);
}

TEST(DocumentsTest, ConversationsAreRendered) {
  const TempDir dir;
  const std::string row = R"({"messages":[{"role":"user","content":")" + std::string(70, 'x') +
                          R"("},{"role":"assistant","content":"<|im_end|>yes"}]})";
  dir.Write("a.jsonl", row + "\n" + row + "\n");
  const auto tokenizer = Bytes();
  const auto chat = ChatTemplate::ByName("chatml");
  ASSERT_TRUE(chat.ok());
  const absl::StatusOr<std::optional<ChatTemplate>> known = std::optional<ChatTemplate>(*chat);
  const auto set = ReadDocuments({dir.File("a.jsonl")}, *tokenizer, known, 1000);
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ(set->documents.size(), 1U);
  EXPECT_EQ(set->files[0].repeated, 1);
  const std::vector<ChatMessage> messages = {{.role = "user", .content = std::string(70, 'x')},
                                             {.role = "assistant", .content = "<|im_end|>yes"}};
  EXPECT_EQ(set->documents[0].tokens,
            *EncodeChat(*tokenizer, *chat, messages, {.add_generation_prompt = false}));

  // Where a server would begin to write, and the whole blocks before it.
  const auto asked = EncodeChat(*tokenizer, *chat, absl::MakeConstSpan(messages).first(1));
  const auto answer = static_cast<std::int32_t>(asked->size());
  EXPECT_EQ(set->documents[0].answer, answer);
  const DocumentCut cut(set->documents[0], 512, 128);
  EXPECT_EQ(cut.prefix, 64);
  EXPECT_EQ(cut.prefix + cut.continuation + 1, set->documents[0].tokens.size());

  EXPECT_THAT(Message(ReadDocuments({dir.File("a.jsonl")}, *tokenizer, kNoChat, 1000)),
              HasSubstr("a.jsonl:1: \"messages\", and there is no chat template"));
  const absl::StatusOr<std::optional<ChatTemplate>> unknown =
      absl::InvalidArgumentError("unknown template");
  EXPECT_THAT(Message(ReadDocuments({dir.File("a.jsonl")}, *tokenizer, unknown, 1000)),
              HasSubstr("a.jsonl:1: unknown template"));
  dir.Write("b.jsonl", R"({"messages":[{"role":"user","content":["x"]}]})");
  EXPECT_THAT(Message(ReadDocuments({dir.File("b.jsonl")}, *tokenizer, known, 1000)),
              HasSubstr("b.jsonl:1: \"messages\"[0]: no string \"content\""));
}

TEST(DocumentsTest, ACutIsBeforeTheAnswerWhereThereIsOne) {
  Document document = {.tokens = std::vector<std::int32_t>(300, 1)};
  const DocumentCut text(document, 512, 128);
  EXPECT_EQ(text.prefix, 200);
  EXPECT_EQ(text.continuation, 99);
  EXPECT_EQ(text.predictions(), 99);
  document.answer = 257;
  EXPECT_EQ(DocumentCut(document, 512, 128).prefix, 256);
  EXPECT_EQ(DocumentCut(document, 512, 128).before_answer, 0);  // token 256 predicts it
  EXPECT_EQ(DocumentCut(document, 512, 128).predictions(), 43);
  document.answer = 290;
  EXPECT_EQ(DocumentCut(document, 512, 128).before_answer, 33);
  EXPECT_EQ(DocumentCut(document, 512, 128).predictions(), 10);
  EXPECT_EQ(DocumentCut(document, 512, 16).continuation, 15);
  EXPECT_EQ(DocumentCut(document, 512, 16).predictions(), 15);  // the answer is out of reach
  EXPECT_EQ(DocumentCut(document, 100, 128).prefix, 100);
  document.answer = 256;  // the block that ends there is not whole before the answer's first token
  EXPECT_EQ(DocumentCut(document, 512, 128).prefix, 192);
  document.answer = 30;
  EXPECT_EQ(DocumentCut(document, 512, 128).prefix, 200);
}

TEST(DocumentsTest, OnlyThePieceWithTheAnswerHasOne) {
  const TempDir dir;
  dir.Write("a.jsonl", R"({"messages":[{"role":"user","content":")" + std::string(200, 'x') +
                           R"("},{"role":"assistant","content":")" + std::string(60, 'y') +
                           R"("}]})");
  const auto tokenizer = Bytes();
  const absl::StatusOr<std::optional<ChatTemplate>> chat =
      std::optional<ChatTemplate>(*ChatTemplate::ByName("chatml"));
  const auto set = ReadDocuments({dir.File("a.jsonl")}, *tokenizer, chat, 150);
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ(set->documents.size(), 2U);
  EXPECT_EQ(set->documents[0].answer, 0);
  const auto at = static_cast<std::size_t>(set->documents[1].answer);
  ASSERT_GT(at, 0U);
  EXPECT_EQ(*tokenizer->Decode({set->documents[1].tokens.data() + at, 3}), "yyy");
}

TEST(DocumentsTest, LongTextsAreReadWhole) {
  const TempDir dir;
  std::string text;  // 1.2 MiB, without a line's end in it, of characters of two bytes
  for (int i = 0; i < 600'000; ++i) text += "é";
  dir.Write("a.txt", text);
  const auto tokenizer = Bytes();
  const auto set = ReadDocuments({dir.File("a.txt")}, *tokenizer, kNoChat, 1000);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->files[0].tokens, 1'200'000);
}

TEST(DocumentsTest, WhatIsWrongIsNamed) {
  const TempDir dir;
  const auto tokenizer = Bytes();
  const std::string line = "{\"text\":\"" + std::string(80, 'y') + "\"}\n";
  dir.Write("kind.csv", line);
  dir.Write("json.jsonl", line + "{\"text\":\n");
  dir.Write("row.jsonl", line + "[1]\n");
  dir.Write("field.jsonl", line + line + "{\"question\":\"x\"}\n");
  dir.Write("type.jsonl", "{\"text\":7}\n");
  dir.Write("utf8.txt", "abc\xff");
  dir.Write("short.txt", "abc");
  const auto read = [&](const std::string& name) {
    return Message(ReadDocuments({dir.File(name)}, *tokenizer, kNoChat, 100));
  };
  EXPECT_THAT(read("kind.csv"), HasSubstr("kind.csv: neither .txt nor .jsonl"));
  EXPECT_THAT(read("json.jsonl"), HasSubstr("json.jsonl:2: not a JSON object"));
  EXPECT_THAT(read("row.jsonl"), HasSubstr("row.jsonl:2: not a JSON object"));
  EXPECT_THAT(read("field.jsonl"),
              HasSubstr("field.jsonl:3: neither \"text\", \"context\" nor \"messages\""));
  EXPECT_THAT(read("type.jsonl"), HasSubstr("type.jsonl:1: \"text\" is not a string"));
  EXPECT_THAT(read("utf8.txt"), HasSubstr("utf8.txt: is not valid UTF-8"));
  EXPECT_THAT(read("short.txt"), HasSubstr("short.txt: no text of at least 64 tokens"));
  EXPECT_THAT(read("none.txt"), HasSubstr("none.txt"));
  EXPECT_THAT(Message(ReadDocuments({dir.File("short.txt")}, *tokenizer, kNoChat, 10)),
              HasSubstr("10"));
}

DocumentSet Numbered(int count) {
  DocumentSet set;
  for (int i = 0; i < count; ++i)
    set.documents.push_back({.tokens = std::vector<std::int32_t>(100, i)});
  return set;
}

TEST(DocumentsTest, SplitIsBySeedAndApart) {
  const DocumentSet set = Numbered(50);
  const auto a = SplitDocuments(set, 10, 2000, 1);
  const auto b = SplitDocuments(set, 10, 2000, 1);
  const auto c = SplitDocuments(set, 10, 2000, 2);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_EQ(a->held_out, b->held_out);
  EXPECT_EQ(a->learned, b->learned);
  EXPECT_NE(a->held_out, c->held_out);
  EXPECT_EQ(a->held_out.size(), 10U);
  EXPECT_EQ(a->learned.size(), 20U);
  EXPECT_EQ(a->learned_tokens, 2000);
  std::set<const Document*> all(a->learned.begin(), a->learned.end());
  all.insert(a->held_out.begin(), a->held_out.end());
  EXPECT_EQ(all.size(), 30U);
}

TEST(DocumentsTest, NothingLeftToLearnFromIsAnError) {
  EXPECT_EQ(SplitDocuments(Numbered(5), 5, 2000, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto one = SplitDocuments(Numbered(5), 4, 10, 1);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->learned.size(), 1U);  // never none for its length
}

}  // namespace
}  // namespace baton
