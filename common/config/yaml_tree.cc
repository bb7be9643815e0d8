#include "common/config/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <exception>
#include <sstream>

#include "common/base/strings.h"
#include "common/base/utf8.h"

namespace baton::config {
namespace {

// yaml-cpp takes the end of the file for a missing closing quote, and the keys in between for text.
// This comment is put after the text: a quoted scalar that contains it was never closed.
constexpr std::string_view kEndMark = "#baton-config-end-of-file";

// Thrown from inside yaml-cpp's callbacks; never leaves this file.
struct Refused {
  int line;
  std::string message;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  YamlNode Take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    throw Refused{mark.line + 1, "anchors and aliases are not supported ('&" + name + "')"};
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refused{mark.line + 1, "anchors and aliases are not supported"};
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Check(mark, "", anchor);
    if (WantsKey()) throw Refused{mark.line + 1, "a key is missing or null"};
    YamlNode node;
    node.line = mark.line + 1;
    Add(std::move(node));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Check(mark, tag, anchor);
    if (tag == "!" && value.find(kEndMark) != std::string::npos) {
      throw Refused{mark.line + 1, "not valid YAML: a quote is opened here and never closed"};
    }
    // yaml-cpp makes single bytes of these two, which are not UTF-8.
    if (!IsValidUtf8(value)) {
      throw Refused{mark.line + 1,
                    "the escapes \\N and \\_ are not supported; write \\u0085 or \\u00a0"};
    }
    if (WantsKey()) {
      stack_.back().key = value;
      stack_.back().key_line = mark.line + 1;
      stack_.back().has_key = true;
      return;
    }
    YamlNode node;
    node.kind = YamlNode::Kind::kScalar;
    node.line = mark.line + 1;
    node.quoted = tag == "!";
    node.scalar = value;
    Add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kSequence, mark, tag, anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Frame {
    YamlNode node;
    std::string key;
    int key_line = 0;
    bool has_key = false;
  };

  bool WantsKey() const {
    return !stack_.empty() && stack_.back().node.kind == YamlNode::Kind::kMap &&
           !stack_.back().has_key;
  }

  void Check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    const int line = mark.line + 1;
    if (anchor != 0) throw Refused{line, "anchors and aliases are not supported"};
    // yaml-cpp's "?" is a plain and "!" a quoted scalar without an explicit tag.
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw Refused{line, "explicit tags are not supported ('" + tag + "')"};
    }
    if (++nodes_ > kMaxConfigNodes) {
      throw Refused{line, fmt::format("more than {} values", kMaxConfigNodes)};
    }
  }

  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    Check(mark, tag, anchor);
    if (WantsKey()) throw Refused{mark.line + 1, "a key must be a plain word, not a list or map"};
    if (stack_.size() >= static_cast<size_t>(kMaxConfigDepth)) {
      throw Refused{mark.line + 1, fmt::format("nested deeper than {} levels", kMaxConfigDepth)};
    }
    Frame& frame = stack_.emplace_back();
    frame.node.kind = kind;
    frame.node.line = mark.line + 1;
  }

  void Close() {
    YamlNode node = std::move(stack_.back().node);
    stack_.pop_back();
    Add(std::move(node));
  }

  void Add(YamlNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.node.kind == YamlNode::Kind::kSequence) {
      frame.node.items.push_back(std::move(node));
      return;
    }
    frame.node.entries.push_back({std::move(frame.key), frame.key_line, std::move(node)});
    frame.has_key = false;
  }

  YamlNode root_;
  std::vector<Frame> stack_;
  size_t nodes_ = 0;
};

absl::Status Bad(std::string_view file, int line, std::string_view message) {
  return absl::InvalidArgumentError(fmt::format("{}:{}: {}", file, line, message));
}

// The whole text must be UTF-8 without control characters, so that messages may quote it.
absl::Status CheckText(std::string_view text, std::string_view file) {
  if (text.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(fmt::format("{}: {} bytes; a config file has at most {}",
                                                  file, text.size(), kMaxConfigBytes));
  }
  int line = 1;
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    const auto c = static_cast<unsigned char>(text[0]);
    if (length == 0) return Bad(file, line, "not valid UTF-8");
    if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F) {
      return Bad(file, line, fmt::format("control character 0x{:02x}", c));
    }
    if (c == '\n') ++line;
    text.remove_prefix(length);
  }
  return absl::OkStatus();
}

}  // namespace

const YamlNode* YamlNode::Find(std::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

const char* YamlNode::KindName() const {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kScalar:
      return "a single value";
    case Kind::kSequence:
      return "a list";
    case Kind::kMap:
      return "a mapping";
  }
  return "nothing";
}

absl::StatusOr<YamlNode> ParseYaml(std::string_view text, std::string_view file_name) {
  if (absl::Status status = CheckText(text, file_name); !status.ok()) return status;
  try {
    std::string marked(text);
    if (!marked.empty() && marked.back() != '\n') marked += '\n';
    marked += kEndMark;
    marked += '\n';
    std::istringstream in(marked);
    YAML::Parser parser(in);
    TreeBuilder builder;
    const bool any = parser.HandleNextDocument(builder);
    YamlNode root = builder.Take();
    if (any) {
      TreeBuilder second;
      if (parser.HandleNextDocument(second)) {
        return Bad(file_name, second.Take().line, "a second document; only one is allowed");
      }
    }
    if (root.kind == YamlNode::Kind::kNull) {
      root.kind = YamlNode::Kind::kMap;
      root.line = 1;
    }
    return root;
  } catch (const Refused& refused) {
    return Bad(file_name, refused.line, refused.message);
  } catch (const YAML::Exception& error) {
    return Bad(file_name, error.mark.line + 1, "not valid YAML: " + error.msg);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        fmt::format("{}: not valid YAML: {}", file_name, error.what()));
  }
}

}  // namespace baton::config
