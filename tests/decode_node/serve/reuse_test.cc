// What is reused is what would have been computed: by whom, when and how often never shows in an
// answer.
#include <algorithm>
#include <atomic>
#include <map>

#include "tests/decode_node/serve/node_pair.h"

namespace baton {
namespace {

class ReuseTest : public NodePair {
 protected:
  v1::DecodeRequest InScope(const std::string& scope, const std::string& model,
                            const std::vector<std::int64_t>& prompt, const std::string& strategy,
                            const std::vector<std::string>& producers) const {
    v1::DecodeRequest r = Request(model, prompt, strategy, producers);
    r.set_scope(scope);
    return r;
  }
};

// Case pfx-01: one prompt for the base and two consumers, in all orders, twice, with and without a
// hand-off of the base's K/V.
TEST_F(ReuseTest, OnePromptForDifferentConsumers) {
  WriteTinyLlama(dir_ / "c", {.seed = 3});
  const std::string producer = StartPrefill("prefill", {Entry("base", "a")});
  ModelEntry one = Entry("one", "b");
  ModelEntry two = Entry("two", "c");
  one.base_model = two.base_model = "base";
  StartDecode({Entry("base", "a"), one, two},
              [](DecodeConfig& c) { c.handoff.min_prefix_tokens = 64; });
  std::vector<std::string> order = {"base", "one", "two"};
  const std::vector<std::vector<std::int64_t>> prompts = {Prompt(64, 1), Prompt(200, 2)};
  std::map<std::string, std::vector<std::int64_t>> want;  // by model, strategy, prompt
  const auto key = [](const std::string& model, const std::string& strategy, std::size_t i) {
    return absl::StrCat(model, " ", strategy, " ", i);
  };
  for (const auto& model : order) {
    for (const char* strategy : {"auto", "raw"}) {
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        const std::string k = key(model, strategy, i);
        const Answer cold = Ask(InScope("cold " + k, model, prompts[i], strategy, {producer}));
        ASSERT_TRUE(cold.status.ok()) << cold.status;
        want[k] = cold.tokens;
        const Answer own = Oracle(model, prompts[i]);
        // Only K/V of other weights may change an answer, and only where they were asked for.
        if (model == "base" || strategy == std::string("auto") || i == 0) {
          EXPECT_EQ(cold.tokens, own.tokens) << k;
        } else {
          EXPECT_NE(cold.tokens, own.tokens) << k << ": the test proves nothing";
        }
      }
    }
  }
  int round = 0;
  do {
    const std::string scope = absl::StrCat("order ", ++round);
    for (int pass = 0; pass < 2; ++pass) {
      for (const auto& model : order) {
        for (const char* strategy : {"raw", "auto"}) {
          for (std::size_t i = 0; i < prompts.size(); ++i) {
            const Answer got = Ask(InScope(scope, model, prompts[i], strategy, {producer}));
            ASSERT_TRUE(got.status.ok()) << got.status;
            const auto& exact = want[key(model, "auto", i)];
            // raw is the least that is asked for: what the model itself computed meanwhile is
            // better.
            if (strategy == std::string("auto") || got.tokens != want[key(model, "raw", i)]) {
              EXPECT_EQ(got.tokens, exact)
                  << scope << " pass " << pass << ": " << key(model, strategy, i);
            }
          }
        }
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(round, 6);
  ExpectNothingHeld();
}

// Case pfx-03: many with one prefix at the same instant on cold caches.
TEST_F(ReuseTest, ColdStampedeOnOnePrefixEqualsOneByOne) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  constexpr int kRequests = 32;
  constexpr int kRounds = 20;
  std::vector<std::vector<std::int64_t>> prompts;
  std::vector<std::vector<std::int64_t>> want;
  for (int i = 0; i < kRequests; ++i) {
    auto prompt = Prompt(128, 77);
    const auto tail = Prompt(10 + i, static_cast<std::uint32_t>(i));
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    prompts.push_back(prompt);
    want.push_back(Oracle("m", prompt).tokens);
    ASSERT_EQ(want.back().size(), 12u);
  }
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Answer> got(kRequests);
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < kRequests; ++i) {
      threads.emplace_back([&, i] {
        v1::DecodeRequest r = InScope(absl::StrCat("round ", round), "m", prompts[i],
                                      round % 2 == 0 ? "raw" : "oracle", {producer});
        r.set_shared_prefix_tokens(128);
        while (!go) std::this_thread::yield();
        got[i] = Ask(r);
      });
    }
    go = true;
    for (auto& t : threads) t.join();
    for (int i = 0; i < kRequests; ++i) {
      ASSERT_TRUE(got[i].status.ok()) << got[i].status;
      EXPECT_EQ(got[i].tokens, want[i]) << "round " << round << ", request " << i;
    }
  }
  ExpectNothingHeld();
}

std::vector<std::pair<std::int64_t, float>> Chosen(const std::vector<v1::TokenLogprobs>& all) {
  std::vector<std::pair<std::int64_t, float>> out;
  for (const auto& l : all) {
    out.emplace_back(l.chosen().token_id(), l.chosen().logprob());
    for (const auto& t : l.top()) out.emplace_back(t.token_id(), t.logprob());
  }
  return out;
}

// Case pfx-04: the whole prompt is cached already, and the next one goes on from it.
TEST_F(ReuseTest, WholePromptIsCached) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  const auto ask = [&](const std::string& scope, const std::vector<std::int64_t>& prompt,
                       int max_tokens) {
    v1::DecodeRequest r = InScope(scope, "m", prompt, "raw", {producer});
    r.mutable_stop()->set_max_tokens(max_tokens);
    r.mutable_sampling()->set_logprobs(true);
    r.mutable_sampling()->set_top_logprobs(3);
    return Ask(r);
  };
  for (const int n : {128, 150, 192}) {
    for (const int max_tokens : {1, 8}) {
      const std::string scope = absl::StrCat("full ", n, " ", max_tokens);
      const auto prompt = Prompt(n, static_cast<std::uint32_t>(n));
      const Answer first = ask(scope, prompt, max_tokens);
      ASSERT_TRUE(first.status.ok()) << first.status;
      const Answer second = ask(scope, prompt, max_tokens);
      ASSERT_TRUE(second.status.ok()) << second.status;
      EXPECT_EQ(first.finished.usage().cached_tokens(), 0);
      // One token at least is computed, so that there are logits; the cache holds whole blocks.
      EXPECT_EQ(second.finished.usage().cached_tokens(), (n - 1) / 64 * 64) << n;
      EXPECT_EQ(second.finished.usage().transferred_tokens(), 0);
      EXPECT_EQ(second.finished.usage().prompt_tokens(), n);
      EXPECT_EQ(second.tokens, first.tokens) << n;
      ASSERT_EQ(second.logprobs.size(), static_cast<std::size_t>(max_tokens));
      EXPECT_EQ(Chosen(second.logprobs), Chosen(first.logprobs)) << n;
      auto longer = prompt;
      const auto tail = Prompt(70, 9);
      longer.insert(longer.end(), tail.begin(), tail.end());
      const Answer third = ask(scope, longer, max_tokens);
      EXPECT_EQ(third.tokens, ask("cold " + scope, longer, max_tokens).tokens) << n;
      EXPECT_EQ(third.finished.usage().cached_tokens(), n / 64 * 64) << n;
    }
  }
  ExpectNothingHeld();
}

}  // namespace
}  // namespace baton
