#include "common/prefix_hash/space.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

namespace baton {
namespace {

Space Sample() {
  Space space;
  space.kind = SpaceKind::kNativeKv;
  space.weights_digest = "w1";
  space.tokenizer_digest = "t1";
  space.layout = {"fp32", 30, 3, 64, 16, 64, "theta=10000"};
  return space;
}

// "abc" hashed by the reference implementation of XXH3-128 (python-xxhash).
TEST(SpaceTest, ContentDigestIsXxh3Of128Bits) {
  EXPECT_EQ(ContentDigest("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(SpaceTest, EveryFieldChangesTheDigestAndIsNamed) {
  struct Case {
    const char* field;
    std::function<void(Space&)> change;
  };
  const std::vector<Case> cases = {
      {"kind", [](Space& s) { s.kind = SpaceKind::kBaseKv; }},
      {"weights_digest", [](Space& s) { s.weights_digest = "w2"; }},
      {"tokenizer_digest", [](Space& s) { s.tokenizer_digest = "t2"; }},
      {"layout.dtype", [](Space& s) { s.layout.dtype = "bf16"; }},
      {"layout.layers", [](Space& s) { s.layout.layers = 31; }},
      {"layout.kv_heads", [](Space& s) { s.layout.kv_heads = 4; }},
      {"layout.head_dim", [](Space& s) { s.layout.head_dim = 128; }},
      {"layout.page_rows", [](Space& s) { s.layout.page_rows = 32; }},
      {"layout.block_tokens", [](Space& s) { s.layout.block_tokens = 32; }},
      {"layout.rope", [](Space& s) { s.layout.rope = "theta=500000"; }},
      {"encoder_digest", [](Space& s) { s.encoder_digest = "e"; }},
      {"fidelity", [](Space& s) { s.fidelity = Fidelity::Raw("w0"); }},
  };
  std::set<std::string> digests = {Sample().Digest()};
  for (const Case& c : cases) {
    Space other = Sample();
    c.change(other);
    EXPECT_TRUE(digests.insert(other.Digest()).second) << c.field;
    const absl::Status status = CompareSpaces(Sample(), other);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(std::string(c.field) + ": want "), absl::string_view::npos)
        << status;
  }
}

TEST(SpaceTest, ComparisonNamesAllFieldsAndBothValues) {
  Space have = Sample();
  have.layout.head_dim = 128;
  have.layout.dtype = "bf16";
  EXPECT_EQ(
      CompareSpaces(Sample(), have).message(),
      "spaces differ: layout.dtype: want fp32, have bf16; layout.head_dim: want 64, have 128");
  EXPECT_TRUE(CompareSpaces(Sample(), Sample()).ok());
}

// A value with a line break can't imitate another field.
TEST(SpaceTest, ValuesAreEscaped) {
  Space a = Sample();
  Space b = Sample();
  a.weights_digest = "x\ntokenizer_digest=t1";
  b.weights_digest = "x";
  EXPECT_NE(a.CanonicalText(), b.CanonicalText());
  EXPECT_EQ(a.CanonicalText().find("\ntokenizer_digest=t1\ntokenizer_digest"), std::string::npos);
}

}  // namespace
}  // namespace baton
