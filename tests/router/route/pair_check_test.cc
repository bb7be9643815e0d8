// Case pd-06: nodes that differ in one item at a time.
#include "router/route/pair_check.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using testing::HasSubstr;

class PairCheckTest : public testing::Test {
 protected:
  PairCheckTest() {
    decode_.set_protocol(1);
    decode_.set_version("1.0");
    v1::Space& space = *model_.mutable_accepts();
    space.set_kind(v1::Space::BASE_KV);
    space.set_weights_digest("w1");
    space.set_tokenizer_digest("t1");
    space.mutable_layout()->set_dtype("fp32");
    space.mutable_layout()->set_layers(3);
    space.mutable_layout()->set_kv_heads(2);
    space.mutable_layout()->set_head_dim(16);
    space.mutable_layout()->set_page_rows(16);
    space.mutable_layout()->set_block_tokens(64);
    space.mutable_layout()->set_rope("theta=10000");
    model_.set_base_model("base");
    *prefill_.mutable_node() = decode_;
    prefill_.add_models()->set_name("base");
    *prefill_.mutable_models(0)->mutable_space() = space;
  }
  std::string Why() const { return WhyNotPair(decode_, model_, prefill_); }

  v1::NodeIdentity decode_;
  v1::DecodeModel model_;
  v1::PrefillInfo prefill_;
};

TEST_F(PairCheckTest, EachItemIsNamedWithBothValues) {
  EXPECT_EQ(Why(), "");
  const struct {
    const char* says;
    std::function<void(v1::Space&)> change;
  } cases[] = {
      {"kind: want BASE_KV, have CODE", [](auto& s) { s.set_kind(v1::Space::CODE); }},
      {"weights_digest: want w1, have w2", [](auto& s) { s.set_weights_digest("w2"); }},
      {"tokenizer_digest: want t1, have t2", [](auto& s) { s.set_tokenizer_digest("t2"); }},
      {"layout.dtype: want fp32, have bf16",
       [](auto& s) { s.mutable_layout()->set_dtype("bf16"); }},
      {"layout.layers: want 3, have 4", [](auto& s) { s.mutable_layout()->set_layers(4); }},
      {"layout.kv_heads: want 2, have 1", [](auto& s) { s.mutable_layout()->set_kv_heads(1); }},
      {"layout.head_dim: want 16, have 32", [](auto& s) { s.mutable_layout()->set_head_dim(32); }},
      {"layout.page_rows: want 16, have 32",
       [](auto& s) { s.mutable_layout()->set_page_rows(32); }},
      {"layout.block_tokens: want 64, have 16",
       [](auto& s) { s.mutable_layout()->set_block_tokens(16); }},
      {"layout.rope: want theta=10000, have theta=5",
       [](auto& s) { s.mutable_layout()->set_rope("theta=5"); }},
  };
  for (const auto& c : cases) {
    const v1::PrefillInfo good = prefill_;
    c.change(*prefill_.mutable_models(0)->mutable_space());
    EXPECT_EQ(Why(), c.says);
    prefill_ = good;
  }
}

TEST_F(PairCheckTest, ProtocolAndBase) {
  prefill_.mutable_node()->set_protocol(2);
  EXPECT_THAT(Why(), HasSubstr("protocol: want 1, have 2"));
  prefill_.mutable_node()->set_protocol(1);
  prefill_.mutable_models(0)->set_name("another");
  EXPECT_THAT(Why(), testing::AllOf(HasSubstr("'another'"), HasSubstr("'base'")));
}

TEST_F(PairCheckTest, WhatMayDiffer) {
  prefill_.mutable_node()->set_version("1.1");
  prefill_.mutable_node()->set_name("elsewhere");
  prefill_.mutable_node()->set_incarnation(77);
  prefill_.mutable_models(0)->set_max_context_tokens(128);
  prefill_.set_kv_pages_total(5);
  EXPECT_EQ(Why(), "");
  model_.mutable_accepts()->clear_weights_digest();  // any weights of the same layout will do
  EXPECT_EQ(Why(), "");
}

}  // namespace
}  // namespace baton
