#include "common/tokenizer/tool_calls.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<std::string> kTools = {R"({"type":"function","function":{"name":"get_weather"}})",
                                         R"({"type":"function","function":{"name":"add"}})"};

struct Read {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
};

// The reply in pieces of every size gives the same.
Read ReadReply(const char* kind, const std::string& reply,
               const std::vector<std::string>& tools = kTools) {
  Read first;
  for (size_t size = reply.size() + 1; size > 0; --size) {
    ToolCallReader reader(*ChatTemplate::ByName(kind), tools);
    Read read;
    for (size_t i = 0; i < reply.size(); i += size) read.text += reader.Push(reply.substr(i, size));
    ToolCallReader::Reply rest = reader.Finish();
    read.text += rest.text;
    for (const ChatToolCall& call : rest.calls) {
      EXPECT_EQ(call.id.size(), 9u);
      read.calls.emplace_back(call.name, call.arguments);
    }
    if (size == reply.size() + 1) {
      first = std::move(read);
    } else {
      EXPECT_EQ(read.text, first.text) << size;
      EXPECT_EQ(read.calls, first.calls) << size;
    }
  }
  return first;
}

TEST(ToolCallReaderTest, Qwen) {
  for (const char* kind : {"qwen2.5", "qwen2.5-base", "qwen3", "qwen3-2507"}) {
    const Read one = ReadReply(
        kind,
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Z\\u00fcrich\"}}\n"
        "</tool_call>");
    EXPECT_EQ(one.text, "");
    EXPECT_THAT(one.calls, ElementsAre(std::pair("get_weather", "{\"city\": \"Z\xc3\xbcrich\"}")));
    const Read two =
        ReadReply(kind,
                  "Let me <b>see</b>.\n<tool_call>\n{\"name\":\"add\",\"arguments\":{}}\n"
                  "</tool_call>\n<tool_call>{\"arguments\":{\"a\":[1,2.0]},"
                  "\"name\":\"other\"}</tool_call>\n");
    EXPECT_EQ(two.text, "Let me <b>see</b>.");
    EXPECT_THAT(two.calls,
                ElementsAre(std::pair("add", "{}"), std::pair("other", "{\"a\": [1, 2.0]}")));
  }
}

// Whatever the calls can't be read from stays text, whole.
TEST(ToolCallReaderTest, NoCallIsInvented) {
  for (const char* reply :
       {"", "plain", "a <tool", "x\n", "\n\n<", "<tool_call>", "<tool_call>\n{\"name\": \"a",
        "<tool_call>\n{bad}\n</tool_call>", "<tool_call>[]</tool_call>",
        "<tool_call>{\"name\":\"a\",\"arguments\":\"{}\"}</tool_call>",
        "<tool_call>{\"name\":1,\"arguments\":{}}</tool_call>",
        "<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call> and then",
        "t\n<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call><tool_call>"}) {
    const Read read = ReadReply("qwen3", reply);
    EXPECT_EQ(read.text, reply);
    EXPECT_THAT(read.calls, IsEmpty()) << reply;
  }
  // No tools were offered, or the template has none.
  const std::string call = "<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>";
  EXPECT_EQ(ReadReply("qwen3", call, {}).text, call);
  EXPECT_EQ(ReadReply("smollm2", call).text, call);
}

TEST(ToolCallReaderTest, Llama31) {
  const Read read = ReadReply("llama3.1", " {\"name\": \"add\", \"parameters\": {\"a\": 1}}\n");
  EXPECT_EQ(read.text, "");
  EXPECT_THAT(read.calls, ElementsAre(std::pair("add", "{\"a\": 1}")));
  for (const char* reply : {"Hi {\"name\":\"add\",\"parameters\":{}}", "{\"name\":\"add\"}", "{",
                            "{\"name\":\"unknown\",\"parameters\":{}}", "[1]", "  ",
                            "{\"name\":\"add\",\"parameters\":{}} then"}) {
    EXPECT_EQ(ReadReply("llama3.1", reply).text, reply);
    EXPECT_THAT(ReadReply("llama3.1", reply).calls, IsEmpty()) << reply;
  }
}

TEST(ToolCallReaderTest, Mistral) {
  const Read read = ReadReply("mistral-v3",
                              " [{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"name\": "
                              "\"get_weather\", \"arguments\": {}, \"id\": \"abcdefghi\"}]");
  EXPECT_EQ(read.text, "");
  EXPECT_THAT(read.calls,
              ElementsAre(std::pair("add", "{\"a\": 1}"), std::pair("get_weather", "{}")));
  for (const char* reply : {" Hello", "[]", "[1]", "[{\"name\":\"no\",\"arguments\":{}}]", "[",
                            "{\"name\":\"add\",\"arguments\":{}}"}) {
    EXPECT_EQ(ReadReply("mistral-v3", reply).text, reply);
    EXPECT_THAT(ReadReply("mistral-v3", reply).calls, IsEmpty()) << reply;
  }
}

}  // namespace
}  // namespace baton
