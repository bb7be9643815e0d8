// `reuse` between real nodes: codes of the producer's states become the consumer's K/V.
#include <string>
#include <vector>

#include "tests/decode_node/serve/codes_fixture.h"

namespace baton {
namespace {

using testing::HasSubstr;

// Codes of the model's own states, hardly rounded: the same words, from either source.
TEST_F(CodesTest, OwnStatesGiveTheOwnAnswer) {
  for (const CodeSource source : {CodeSource::kHidden, CodeSource::kKv}) {
    SCOPED_TRACE(CodeSourceName(source));
    prefill_.clear();
    const std::string codec = WriteCodec("a", "a", source);
    const std::string producer =
        StartPrefill(CodeSourceName(source), {EntryWith("base", "a", {codec})});
    StartDecode({EntryWith("m", "a", {codec})});
    for (const int length : {128, 200, 500}) {
      const auto prompt = Prompt(length, static_cast<std::uint32_t>(length));
      const Answer got = Reuse(prompt, producer);
      ASSERT_TRUE(got.status.ok()) << got.status;
      EXPECT_EQ(got.timing().strategy(), "reuse") << got.timing().fallback_reason();
      const auto prefix = static_cast<int>(ShareablePrefix(length, std::nullopt));
      EXPECT_EQ(got.finished.usage().transferred_tokens(), prefix - 4);
      // 8 bits for each of the source's numbers, of every token of the blocks.
      EXPECT_EQ(got.timing().handoff_bytes(),
                static_cast<std::uint64_t>(prefix) * 3 * codec_.identity.source_width());
      EXPECT_EQ(got.tokens, Oracle("m", prompt).tokens) << length;
    }
    ExpectNothingHeld();
    decode_.reset();
  }
}

// A consumer of other weights: whatever the codec makes of the producer's states, the first token
// of it is not the raw K/V's.
TEST_F(CodesTest, AnotherConsumerGetsItsOwnKv) {
  const std::string codec = WriteCodec("a", "b", CodeSource::kHidden);
  const std::string producer = StartPrefill("p", {EntryWith("base", "a", {codec})});
  StartDecode({EntryWith("m", "b", {codec})});
  const auto prompt = Prompt(300, 5);
  const Answer codes = Reuse(prompt, producer);
  ASSERT_TRUE(codes.status.ok()) << codes.status;
  EXPECT_EQ(codes.timing().strategy(), "reuse") << codes.timing().fallback_reason();
  const Answer raw = Ask(Request("m", prompt, "raw", {producer}));
  ASSERT_TRUE(raw.status.ok()) << raw.status;
  EXPECT_NE(raw.tokens, codes.tokens);
  // Neither has poisoned what the model computes itself.
  const Answer cold = Oracle("m", prompt);
  EXPECT_EQ(Ask(Request("m", prompt, "oracle")).tokens, cold.tokens);
  ExpectNothingHeld();
}

// A warm prefix costs no forward pass, and what is stored is what was sent.
TEST_F(CodesTest, TheStoreSavesTheForward) {
  const std::string codec = WriteCodec("a", "a", CodeSource::kHidden);
  const std::string producer = StartPrefill("p", {EntryWith("base", "a", {codec})});
  StartDecode({EntryWith("m", "a", {codec})});
  const auto prompt = Prompt(400, 9);
  const Answer cold = Reuse(prompt, producer);
  ASSERT_TRUE(cold.status.ok()) << cold.status;
  EXPECT_EQ(cold.timing().producer_cached_tokens(), 0u);
  EXPECT_THAT(prefill_[0]->metrics().SerializeText(),
              HasSubstr("baton_code_store_queries_tokens_total 320\n"))
      << "who waits for nobody looks once";
  decode_->host().ClearPrefixCaches();
  const Answer warm = Reuse(prompt, producer);
  EXPECT_EQ(warm.timing().producer_cached_tokens(), 320u);
  EXPECT_EQ(warm.timing().prefill_s(), 0);
  EXPECT_EQ(warm.tokens, cold.tokens);
  EXPECT_EQ(warm.timing().handoff_bytes(), cold.timing().handoff_bytes());
  // A longer prompt on the same prefix: what is stored comes from the store, the rest is computed.
  decode_->host().ClearPrefixCaches();
  auto longer = prompt;
  const auto tail = Prompt(200, 10);
  longer.insert(longer.end(), tail.begin(), tail.end());
  const Answer part = Reuse(longer, producer);
  EXPECT_EQ(part.timing().strategy(), "reuse") << part.timing().fallback_reason();
  EXPECT_EQ(part.tokens, Oracle("m", longer).tokens);
  ExpectNothingHeld();
}

// What memory has no room for costs no forward either, also after a restart.
TEST_F(CodesTest, TheSpillSavesTheForward) {
  const std::string codec = WriteCodec("a", "a", CodeSource::kHidden);
  const auto with_spill = [this](auto& c) {
    c.handoff.code_store_bytes = 64 << 10;  // of a prompt's 320 tokens
    c.handoff.code_spill_path = (dir_ / "spilled").string();
    c.handoff.code_spill_bytes = 64 << 20;
  };
  std::string producer = StartPrefill("p", {EntryWith("base", "a", {codec})}, with_spill);
  StartDecode({EntryWith("m", "a", {codec})});
  std::vector<std::vector<std::int64_t>> prompts;
  std::vector<Answer> cold;
  for (std::uint32_t seed : {31, 32, 33, 34}) {
    prompts.push_back(Prompt(400, seed));
    cold.push_back(Reuse(prompts.back(), producer));
    ASSERT_TRUE(cold.back().status.ok()) << cold.back().status;
    EXPECT_EQ(cold.back().timing().producer_cached_tokens(), 0u);
  }
  const auto expect_warm = [&](std::size_t i) {
    decode_->host().ClearPrefixCaches();
    const Answer warm = Reuse(prompts[i], producer);
    EXPECT_EQ(warm.timing().producer_cached_tokens(), 320u) << i;
    EXPECT_EQ(warm.timing().prefill_s(), 0) << i;
    EXPECT_EQ(warm.tokens, cold[i].tokens) << i;
  };
  for (std::size_t i = 0; i < prompts.size(); ++i) expect_warm(i);
  EXPECT_THAT(prefill_[0]->metrics().SerializeText(),
              Not(HasSubstr("baton_code_spill_hits_tokens_total 0\n")));
  prefill_.clear();
  producer = StartPrefill("again", {EntryWith("base", "a", {codec})}, with_spill);
  expect_warm(0);  // the others pushed it out of memory
  ExpectNothingHeld();
}

// One forward for everybody: consumers with codecs of their own, and all of them at once. With a
// folder the store is looked into on a worker.
TEST_F(CodesTest, OnePrefixIsComputedOnce) {
  const std::string first = WriteCodec("a", "a", CodeSource::kHidden);
  const std::string second = WriteCodec("a", "b", CodeSource::kHidden);
  for (const char* folder : {"", "spilled"}) {
    SCOPED_TRACE(folder);
    prefill_.clear();
    decode_.reset();
    const std::string producer = StartPrefill(
        absl::StrCat("p", folder), {EntryWith("base", "a", {first, second})}, [&](auto& c) {
          if (*folder == '\0') return;
          c.handoff.code_spill_path = (dir_ / folder).string();
          c.handoff.code_spill_bytes = 1 << 20;
        });
    // Without a cache of its own, which would serve who comes after the first has ended.
    StartDecode({EntryWith("own", "a", {first}), EntryWith("other", "b", {second})},
                [](DecodeConfig& c) { c.engine.prefix_cache = false; });
    const auto prompt = Prompt(500, 21);
    std::vector<Answer> answers(6);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < answers.size(); ++i) {
      threads.emplace_back([&, i] {
        answers[i] = Ask(Request(i % 2 == 0 ? "own" : "other", prompt, "reuse", {producer}));
      });
    }
    for (std::thread& t : threads) t.join();
    for (std::size_t i = 0; i < answers.size(); ++i) {
      ASSERT_TRUE(answers[i].status.ok()) << answers[i].status;
      EXPECT_EQ(answers[i].timing().strategy(), "reuse") << answers[i].timing().fallback_reason();
      EXPECT_EQ(answers[i].tokens, answers[i % 2].tokens);
    }
    EXPECT_THAT(prefill_[0]->metrics().SerializeText(),
                HasSubstr(absl::StrCat("baton_prompt_tokens_total{model=\"base\"} ",
                                       ShareablePrefix(500, std::nullopt), "\n")));
    ExpectNothingHeld();
  }
}

// Without room in the store every prefix is computed; chunks that do not end with blocks are
// joined.
TEST_F(CodesTest, NoStoreAndOddChunks) {
  const std::string codec = WriteCodec("a", "a", CodeSource::kHidden);
  const std::string producer = StartPrefill("p", {EntryWith("base", "a", {codec})}, [](auto& c) {
    c.handoff.code_store_bytes = 0;
    c.engine.step_tokens = 48;
    c.engine.prefix_cache = true;
  });
  StartDecode({EntryWith("m", "a", {codec})});
  const auto prompt = Prompt(500, 11);
  const auto want = Oracle("m", prompt).tokens;
  for (int i = 0; i < 2; ++i) {
    decode_->host().ClearPrefixCaches();
    const Answer got = Reuse(prompt, producer);
    EXPECT_EQ(got.timing().strategy(), "reuse") << got.timing().fallback_reason();
    EXPECT_EQ(got.timing().producer_cached_tokens(), 0u);  // K/V cannot give states back
    EXPECT_EQ(got.tokens, want);
  }
}

TEST_F(CodesTest, ABudgetCutsTheCode) {
  const std::string codec = WriteCodec("a", "a", CodeSource::kHidden);
  const std::string producer = StartPrefill("p", {EntryWith("base", "a", {codec})});
  StartDecode({EntryWith("m", "a", {codec})},
              [](DecodeConfig& c) { c.handoff.bytes_per_token = 100; });
  const Answer got = Reuse(Prompt(300, 3), producer);
  EXPECT_EQ(got.timing().strategy(), "reuse") << got.timing().fallback_reason();
  EXPECT_EQ(got.timing().handoff_bytes(), 192u * 100);  // 8-bit components fill it
  decode_.reset();
  StartDecode({EntryWith("m", "a", {codec})},
              [](DecodeConfig& c) { c.handoff.bytes_per_token = 2; });
  const Answer none = Reuse(Prompt(300, 3), producer);
  EXPECT_EQ(none.timing().strategy(), "oracle");
  EXPECT_THAT(none.timing().fallback_reason(), HasSubstr("this code takes 3 at least"));
}

// `auto` takes codes where calibration measured little enough harm, all of them.
TEST_F(CodesTest, AutoTakesCodesThatServeWell) {
  WriteCodec("a", "b", CodeSource::kHidden);
  const auto answer = [&](double kl, double max_kl) {
    codec_.report = absl::StrCat(
        R"({"chosen": "closed", "candidates": [{"name": "raw", "kl": 0}, {"name": "closed", "kl": )",
        kl, "}]}");
    const std::string path = (dir_ / absl::StrCat("measured-", kl, "-", max_kl)).string();
    EXPECT_TRUE(SaveCodec(codec_, path).ok());
    prefill_.clear();
    decode_.reset();
    const std::string producer =
        StartPrefill(absl::StrCat("p", kl, max_kl), {EntryWith("base", "a", {path})});
    StartDecode({EntryWith("m", "b", {path})}, [max_kl](DecodeConfig& c) {
      c.handoff.min_prefix_tokens = 64;
      c.handoff.max_kl = max_kl;
      c.handoff.bytes_per_token = 100;
    });
    return Ask(Request("m", Prompt(300, 12), "auto", {producer}));
  };
  const Answer served = answer(0.05, 0.1);
  EXPECT_EQ(served.timing().strategy(), "reuse") << served.timing().fallback_reason();
  EXPECT_EQ(served.timing().handoff_bytes(), 192u * 3 * 64);
  const Answer refused = answer(0.2, 0.1);
  EXPECT_EQ(refused.timing().strategy(), "oracle");
  EXPECT_THAT(refused.timing().fallback_reason(), HasSubstr("auto takes K/V"));
}

// Layers whose codes become the consumer's attention inputs, of which its own weights make K/V.
TEST_F(CodesTest, PatchedLayersAreServedByScd) {
  const std::string plain = WriteCodec("a", "b", CodeSource::kHidden);
  const std::string patched = WriteCodec("a", "b", CodeSource::kHidden, {1, 2});
  const std::string producer = StartPrefill("p", {EntryWith("base", "a", {plain, patched})});
  StartDecode({EntryWith("m", "b", {patched, plain})});
  const auto prompt = Prompt(300, 5);
  const Answer scd = Ask(Request("m", prompt, "scd", {producer}));
  ASSERT_TRUE(scd.status.ok()) << scd.status;
  EXPECT_EQ(scd.timing().strategy(), "scd") << scd.timing().fallback_reason();
  EXPECT_EQ(scd.finished.usage().transferred_tokens(), 192 - 4);
  EXPECT_EQ(scd.tokens, WithoutNodes("a", "b", prompt, 192));
  // `reuse` takes the codec that has none, and gets other K/V.
  const Answer reuse = Reuse(prompt, producer);
  EXPECT_EQ(reuse.timing().strategy(), "reuse") << reuse.timing().fallback_reason();
  EXPECT_NE(reuse.tokens, scd.tokens);
  ExpectNothingHeld();
  decode_.reset();
  StartDecode({EntryWith("m", "b", {patched})});
  const Answer none = Reuse(prompt, producer);
  EXPECT_EQ(none.timing().strategy(), "oracle");
  EXPECT_THAT(none.timing().fallback_reason(),
              HasSubstr("has patched layers or a run of layers; ask for scd"));
  decode_.reset();
  StartDecode({EntryWith("m", "b", {plain})});
  const Answer unpatched = Ask(Request("m", prompt, "scd", {producer}));
  EXPECT_EQ(unpatched.timing().strategy(), "reuse");
  EXPECT_EQ(unpatched.tokens, reuse.tokens);
}

// Layers that the consumer runs itself, from a code of the stream that enters the first of them.
TEST_F(CodesTest, ARunOfLayersIsServedByScd) {
  const std::string plain = WriteCodec("a", "b", CodeSource::kHidden);
  const std::string run = WriteCodec("a", "b", CodeSource::kHidden, {0}, {1, 3});
  // The producer makes codes of both, of all layers for one of them.
  const std::string producer = StartPrefill("p", {EntryWith("base", "a", {plain, run})});
  StartDecode({EntryWith("m", "b", {run, plain})},
              [](DecodeConfig& c) { c.handoff.strategy = Strategy::kScd; });
  const auto prompt = Prompt(500, 5);
  for (const int seam : {0, 32}) {
    auto request = Request("m", prompt, "scd", {producer});
    request.set_handoff_seam(seam);
    const Answer scd = Ask(request);
    ASSERT_TRUE(scd.status.ok()) << scd.status;
    EXPECT_EQ(scd.timing().strategy(), "scd") << scd.timing().fallback_reason();
    EXPECT_EQ(scd.finished.usage().transferred_tokens(), 384 - seam - 4);
    EXPECT_EQ(scd.tokens, WithoutNodes("a", "b", prompt, 384 - seam));
    // 64 codes of 8 bits for the first layer, as many for the run's stream, none behind it.
    EXPECT_EQ(scd.timing().handoff_bytes(), 384u * 128u);
    // The blocks are cached here, of all layers; and in the producer's store for another seam.
    const Answer again = Ask(request);
    EXPECT_EQ(again.tokens, scd.tokens);
    EXPECT_EQ(again.finished.usage().transferred_tokens(), 0);
    if (seam > 0) {
      EXPECT_GT(scd.timing().producer_cached_tokens(), 0u);
    }
  }
  // `reuse` takes the codec without a run.
  const Answer reuse = Reuse(prompt, producer);
  EXPECT_EQ(reuse.timing().strategy(), "reuse") << reuse.timing().fallback_reason();
  ExpectNothingHeld();
}

TEST_F(CodesTest, ARunOverOwnStreamsGivesTheOwnAnswer) {
  const std::string codec = WriteCodec("a", "a", CodeSource::kHidden, {0}, {1, 3});
  const std::string producer = StartPrefill("p", {EntryWith("base", "a", {codec})});
  StartDecode({EntryWith("m", "a", {codec})});
  const auto prompt = Prompt(200, 21);
  const Answer got = Ask(Request("m", prompt, "scd", {producer}));
  EXPECT_EQ(got.timing().strategy(), "scd") << got.timing().fallback_reason();
  EXPECT_EQ(got.tokens, Oracle("m", prompt).tokens);
  const Answer none = Reuse(prompt, producer);
  EXPECT_EQ(none.timing().strategy(), "oracle");
  EXPECT_THAT(none.timing().fallback_reason(), HasSubstr("a run of layers; ask for scd"));
}

// Of the own states, hardly rounded, patched layers give the own answer.
TEST_F(CodesTest, PatchedLayersOfOwnStatesGiveTheOwnAnswer) {
  const std::string codec = WriteCodec("a", "a", CodeSource::kHidden, {0, 1, 2});
  const std::string producer = StartPrefill("p", {EntryWith("base", "a", {codec})});
  StartDecode({EntryWith("m", "a", {codec})});
  const auto prompt = Prompt(200, 21);
  const Answer got = Ask(Request("m", prompt, "scd", {producer}));
  EXPECT_EQ(got.timing().strategy(), "scd") << got.timing().fallback_reason();
  EXPECT_EQ(got.tokens, Oracle("m", prompt).tokens);
}

TEST_F(CodesTest, WithoutACodecThePrefixIsComputedHere) {
  const std::string codec = WriteCodec("a", "a", CodeSource::kHidden);
  const std::string bare = StartPrefill("bare", {EntryWith("base", "a", {})});
  const auto prompt = Prompt(300, 4);
  StartDecode({EntryWith("m", "a", {})});
  const Answer no_decoder = Reuse(prompt, bare);
  ASSERT_TRUE(no_decoder.status.ok()) << no_decoder.status;
  EXPECT_EQ(no_decoder.timing().strategy(), "oracle");
  EXPECT_THAT(no_decoder.timing().fallback_reason(), HasSubstr("no codec makes K/V of \"m\""));
  EXPECT_THAT(decode_->metrics().SerializeText(),
              HasSubstr(R"(baton_handoff_fallbacks_total{model="m",strategy="reuse"} 1)"));
  decode_.reset();
  StartDecode({EntryWith("m", "a", {codec})});
  const Answer no_encoder = Reuse(prompt, bare);
  ASSERT_TRUE(no_encoder.status.ok()) << no_encoder.status;
  EXPECT_THAT(no_encoder.timing().fallback_reason(), HasSubstr("encoder: \"base\" has no codec"));
  EXPECT_EQ(no_encoder.tokens, no_decoder.tokens);
  ExpectNothingHeld();
}

TEST_F(CodesTest, CodecsOfOtherModelsAreRefusedAtStart) {
  const std::string codec = WriteCodec("a", "a", CodeSource::kHidden);
  const auto start = [&](ModelEntry entry) {
    auto config = Common<DecodeConfig>("decode", {std::move(entry)});
    auto node = DecodeNode::Start(config, network_->Add("other"));
    EXPECT_FALSE(node.ok());
    return node.ok() ? std::string() : std::string(node.status().message());
  };
  EXPECT_THAT(start(EntryWith("m", "b", {codec})), HasSubstr("producer_weights: "));
  WriteTinyLlama(dir_ / "deep", {.layers = 4});
  EXPECT_THAT(start(EntryWith("m", "deep", {codec})), HasSubstr("layers: 3, the model has 4"));
  EXPECT_THAT(start(EntryWith("m", "a", {(dir_ / "none").string()})), HasSubstr("none"));
}

}  // namespace
}  // namespace baton
