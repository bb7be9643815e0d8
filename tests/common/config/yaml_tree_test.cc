#include "common/config/yaml_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace baton::config {
namespace {

using ::testing::HasSubstr;

std::string YamlErrorOf(std::string_view text) {
  const auto tree = ParseYaml(text, "f.yaml");
  return tree.ok() ? "" : std::string(tree.status().message());
}

TEST(YamlTreeTest, LinesQuotesAndNull) {
  const auto tree = ParseYaml("a: 1\nb:\n  - \"2\"\n  - 'x'\n  - y\nc:\nd: ~\ne: \"null\"\n", "f");
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(tree->Find("a")->scalar, "1");
  EXPECT_FALSE(tree->Find("a")->quoted);
  EXPECT_EQ(tree->Find("a")->line, 1);
  const YamlNode& list = *tree->Find("b");
  ASSERT_EQ(list.items.size(), 3u);
  EXPECT_TRUE(list.items[0].quoted);
  EXPECT_TRUE(list.items[1].quoted);
  EXPECT_FALSE(list.items[2].quoted);
  EXPECT_EQ(list.items[2].line, 5);
  EXPECT_EQ(tree->Find("c")->kind, YamlNode::Kind::kNull);
  EXPECT_EQ(tree->Find("d")->kind, YamlNode::Kind::kNull);
  EXPECT_EQ(tree->Find("e")->scalar, "null");
  EXPECT_EQ(tree->Find("missing"), nullptr);
}

// YAML 1.1 readers made a boolean of the key n.
TEST(YamlTreeTest, KeysAreText) {
  const auto tree = ParseYaml("n: 1\nyes: 2\n010: 3\n", "f");
  ASSERT_TRUE(tree.ok());
  EXPECT_NE(tree->Find("n"), nullptr);
  EXPECT_NE(tree->Find("yes"), nullptr);
  EXPECT_NE(tree->Find("010"), nullptr);
}

TEST(YamlTreeTest, EmptyFilesAreEmptyMaps) {
  for (const char* text : {"", "\n\n", "# only a comment\n", "---\n", "\xEF\xBB\xBF", "{}", "~"}) {
    const auto tree = ParseYaml(text, "f");
    ASSERT_TRUE(tree.ok()) << text << tree.status();
    EXPECT_EQ(tree->kind, YamlNode::Kind::kMap) << text;
  }
}

TEST(YamlTreeTest, WindowsLineEndsAndByteOrderMark) {
  const auto tree = ParseYaml(
      "\xEF\xBB\xBF"
      "a: 1\r\nb: x\r\n",
      "f");
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(tree->Find("b")->scalar, "x");
}

TEST(YamlTreeTest, RefusedConstructsNameTheLine) {
  EXPECT_THAT(YamlErrorOf("a: 1\nb: &x 2\nc: *x\n"), HasSubstr("f.yaml:2: anchors and aliases"));
  EXPECT_THAT(YamlErrorOf("a: !!int 3\n"), HasSubstr("f.yaml:1: explicit tags"));
  EXPECT_THAT(YamlErrorOf("a: 1\n---\nb: 2\n"), HasSubstr("second document"));
  EXPECT_THAT(YamlErrorOf("? [a, b]\n: 1\n"), HasSubstr("key"));
  EXPECT_THAT(YamlErrorOf("a: 1\nb: [1, 2\nc: 3\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(YamlErrorOf("a:\n\t- 1\n"), HasSubstr("f.yaml:2"));
  EXPECT_THAT(YamlErrorOf("a: 1\nb: \xff\n"), HasSubstr("f.yaml:2: not valid UTF-8"));
  EXPECT_THAT(YamlErrorOf(std::string_view("a: 1\nb: \0\n", 10)), HasSubstr("f.yaml:2: control"));
  EXPECT_THAT(YamlErrorOf("a: \x1b[31m\n"), HasSubstr("control character 0x1b"));
}

// yaml-cpp alone would read the rest of the file as text.
TEST(YamlTreeTest, UnclosedQuotesAreRefused) {
  for (const char* text : {"x: 1\na: \"unclosed\nb: 2\n", "x: 1\na: 'it\n", "x: 1\na: \"",
                           "x: 1\na: \"b\\\n", "x: 1\na: '", "x: 1\na: [\"b, c]\n"}) {
    EXPECT_THAT(YamlErrorOf(text), HasSubstr("f.yaml:2: not valid YAML")) << text;
  }
  EXPECT_EQ(YamlErrorOf("a: \"two\n  lines\"\n"), "");
}

TEST(YamlTreeTest, BlockScalarAtTheEnd) {
  EXPECT_EQ(ParseYaml("a: |\n  x\n  y\n", "f")->Find("a")->scalar, "x\ny\n");
  EXPECT_EQ(ParseYaml("a: |\n  x", "f")->Find("a")->scalar, "x\n");
  EXPECT_EQ(ParseYaml("a: >-\n  x\n  y\n", "f")->Find("a")->scalar, "x y");
  EXPECT_EQ(ParseYaml("a: b\n  c", "f")->Find("a")->scalar, "b c");
}

TEST(YamlTreeTest, BombsAreRefusedQuickly) {
  std::string laughs = "a: &a [x, x, x]\n";
  for (char c = 'b'; c <= 'j'; ++c) {
    laughs += std::string(1, c) + ": &" + c + " [*" + char(c - 1) + ", *" + char(c - 1) + "]\n";
  }
  EXPECT_THAT(YamlErrorOf(laughs), HasSubstr("anchors"));
  EXPECT_THAT(YamlErrorOf(std::string(40, '[')), HasSubstr("f.yaml:1"));
  EXPECT_THAT(YamlErrorOf("a:\n  - " + std::string(500'000, '[')), HasSubstr("f.yaml:2"));
  EXPECT_THAT(YamlErrorOf(std::string(500'000, '{')), HasSubstr("f.yaml:1"));
  EXPECT_THAT(YamlErrorOf(std::string(kMaxConfigBytes + 1, ' ')), HasSubstr("at most 1048576"));
  std::string wide = "a: [";
  for (int i = 0; i < 200'000; ++i) wide += "1,";
  EXPECT_THAT(YamlErrorOf(wide + "1]"), HasSubstr("more than 100000 values"));
}

TEST(YamlTreeTest, DeepButAllowed) {
  const std::string deep = std::string(kMaxConfigDepth, '[') + std::string(kMaxConfigDepth, ']');
  EXPECT_EQ(YamlErrorOf(deep), "");
  EXPECT_THAT(YamlErrorOf("[" + deep + "]"), HasSubstr("nested deeper than 32"));
}

// Found by the fuzz target: yaml-cpp makes bytes of these that no later reader takes as UTF-8.
TEST(YamlTreeTest, EscapesThatWouldNotBeUtf8AreRefused) {
  for (const char* text : {"\n\"a\\N\": 1\n", "\na: \"b\\_c\"\n"}) {
    EXPECT_THAT(YamlErrorOf(text), HasSubstr("f.yaml:2: the escapes \\N and \\_")) << text;
  }
  EXPECT_EQ(YamlErrorOf("a: \"\\u0085 \\u00a0 \\L \\P \\x85\"\n"), "");
}

TEST(YamlTreeTest, MutatedTextNeverCrashes) {
  const std::string good =
      "log: {level: info}\nmodels:\n  - name: \"a\"\n    path: |\n      /x\n  - {name: 'b'}\n"
      "peers: [a, b]\n# end\n? x\n: y\n";
  const std::string spice = "\"'[]{}:,&*!|>%@`#?-\n\t ~<=";
  std::mt19937 random(3);
  for (int i = 0; i < 5000; ++i) {
    std::string text = good;
    for (int n = 1 + static_cast<int>(random() % 6); n > 0; --n) {
      const size_t at = random() % text.size();
      if (random() % 2) {
        text[at] = spice[random() % spice.size()];
      } else {
        text.erase(at, 1 + random() % 5);
      }
    }
    const auto tree = ParseYaml(text, "f.yaml");
    if (tree.ok()) continue;
    EXPECT_THAT(std::string(tree.status().message()), HasSubstr("f.yaml"));
  }
}

}  // namespace
}  // namespace baton::config
