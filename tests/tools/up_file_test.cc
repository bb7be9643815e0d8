#include "tools/up_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace baton::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<std::vector<NodeFile>> Read(const std::string& text) {
  const TempDir dir;
  dir.Write("up_file_test.yaml", text);
  return ReadUpFile(dir.File("up_file_test.yaml"));
}

std::string Error(const std::string& text) {
  const auto nodes = Read(text);
  return nodes.ok() ? "no error" : std::string(nodes.status().message());
}

TEST(UpFileTest, ListsNodesInTheOrderToStartThem) {
  const auto nodes = Read(
      "router: {}\n"
      "decode:\n"
      "  - models: [{name: m, path: /a}]\n"
      "  - node: {name: second}\n"
      "    models:\n"
      "      - {name: m, path: /a}\n"
      "prefill:\n"
      "  models: [{name: m, path: /a}]\n");
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  std::vector<std::string> names;
  for (const NodeFile& n : *nodes) names.push_back(n.name);
  EXPECT_THAT(names, testing::ElementsAre("prefill", "decode-1", "decode-2", "router"));
}

// A user edits this file and knows nothing of those written for the daemons.
TEST(UpFileTest, ErrorsNameTheFilesOwnLines) {
  const std::string error = Error(
      "prefill:\n"
      "  # a comment\n"
      "  models: [{name: m, path: /a}]\n"
      "decode:\n"
      "  - models: [{name: m, path: /a}]\n"
      "  - models:\n"
      "      - name: m\n"
      "        path: /a\n"
      "        weight_dtyp: bf16\n"
      "    engine: {step_tokens: abc}\n"
      "router:\n"
      "  http: {port: 99999}\n");
  EXPECT_THAT(error, HasSubstr("up_file_test.yaml:9: models[0].weight_dtyp: unknown key"));
  EXPECT_THAT(error, HasSubstr("up_file_test.yaml:10: engine.step_tokens"));
  EXPECT_THAT(error, HasSubstr("up_file_test.yaml:12: http.port"));
  EXPECT_THAT(error, Not(HasSubstr("yaml:3")));
}

TEST(UpFileTest, BadFiles) {
  EXPECT_THAT(Error("decoder: {}\n"), HasSubstr(":1: unknown key 'decoder'"));
  EXPECT_THAT(Error("router: {}\n"), HasSubstr("no 'decode' node"));
  EXPECT_THAT(Error("decode: {models: [{name: m, path: /a}]}\n"),
              HasSubstr("exactly one 'router'"));
  EXPECT_THAT(Error("decode: 3\nrouter: {}\n"), HasSubstr(":1: decode: give one node's settings"));
  EXPECT_THAT(Error("decode: [3]\nrouter: {}\n"), HasSubstr("decode[0]"));
  EXPECT_THAT(Error("a: b: c\n"), HasSubstr("up_file_test.yaml:1: "));
  EXPECT_THAT(Error("[]\n"), HasSubstr("prefill, decode and router"));
  EXPECT_THAT(Error("decode: {models: [{name: m}]}\nrouter: {}\n"), HasSubstr("models[0].path"));
  EXPECT_THAT(std::string(ReadUpFile("/nonexistent.yaml").status().message()),
              HasSubstr("No such file"));
}

}  // namespace
}  // namespace baton::tools
