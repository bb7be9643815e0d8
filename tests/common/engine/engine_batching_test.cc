// Whatever shares a step, a page or the pool with a request: its tokens are those it gets alone.
#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "common/model/single_sequence.h"
#include "gtest/gtest.h"
#include "tests/common/engine/engine_fixture.h"

namespace baton {
namespace {

// The model run directly, one token at a time, without any of the engine.
std::vector<std::int32_t> Reference(std::vector<std::int32_t> tokens, int n) {
  const TinyNode& node = TinyModel();
  SerialExecutor executor;
  ForwardPass pass(node.model, nullptr, executor);
  auto sequence = *SingleSequence::Create(node.model->config(), DType::kF32,
                                          static_cast<std::int32_t>(tokens.size()) + n);
  std::vector<std::int32_t> out;
  std::vector<std::int32_t> step = std::move(tokens);
  for (int i = 0; i < n; ++i) {
    std::vector<std::int32_t> positions(step.size());
    std::iota(positions.begin(), positions.end(), sequence->size());
    const auto rows = static_cast<std::int32_t>(step.size());
    const SequenceSlice slice{.row_begin = 0, .row_end = rows, .view = &sequence->view()};
    float* hidden = pass.Embed(step);
    pass.RunLayers(0, 3, hidden, {.positions = positions, .sequences = {&slice, 1}}, nullptr);
    const std::int32_t last = rows - 1;
    const float* logits = pass.Logits(hidden, {&last, 1});
    step = {static_cast<std::int32_t>(std::max_element(logits, logits + 512) - logits)};
    out.push_back(step[0]);
  }
  return out;
}

std::vector<std::vector<std::int32_t>> Prompts() {
  std::vector<std::vector<std::int32_t>> prompts;
  std::uint32_t seed = 1;
  for (const std::size_t n : {1, 2, 15, 16, 17, 63, 64, 65, 100, 128, 200, 300}) {
    prompts.push_back(RandomPrompt(n, seed++));
  }
  return prompts;
}

constexpr int kTokens = 24;

TEST(EngineBatching, AloneEqualsTheModelRunDirectly) {
  TestEngine engine;
  for (const auto& prompt : Prompts()) {
    EXPECT_EQ(engine.Run(Greedy(prompt, kTokens)), Reference(prompt, kTokens)) << prompt.size();
  }
  EXPECT_TRUE(engine.ComesBackEmpty());
}

TEST(EngineBatching, TogetherEqualsAloneInAnyChunking) {
  const auto prompts = Prompts();
  std::vector<std::vector<std::int32_t>> alone;
  for (const auto& prompt : prompts) alone.push_back(Reference(prompt, kTokens));
  for (const std::int32_t step_tokens : {16, 37, 128, 4096}) {
    for (const std::int32_t max_running : {1, 3, 64}) {
      EngineSetup setup;
      setup.options.step_tokens = step_tokens;
      setup.options.max_running = max_running;
      setup.threads = max_running == 3 ? 2 : 1;
      TestEngine engine(setup);
      std::vector<std::shared_ptr<RecordingListener>> listeners;
      for (const auto& prompt : prompts) {
        listeners.push_back(engine.Start(Greedy(prompt, kTokens)).second);
      }
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        const FinishInfo info = listeners[i]->Wait();
        EXPECT_TRUE(info.status.ok());
        EXPECT_EQ(info.reason, FinishReason::kLength);
        EXPECT_EQ(info.prompt_tokens, static_cast<std::int64_t>(prompts[i].size()));
        EXPECT_EQ(info.computed_tokens, info.prompt_tokens);
        EXPECT_EQ(info.completion_tokens, kTokens);
        EXPECT_EQ(listeners[i]->ids(), alone[i])
            << "step_tokens " << step_tokens << " prompt " << i;
      }
      EXPECT_TRUE(engine.ComesBackEmpty());
    }
  }
}

TEST(EngineBatching, PreemptionChangesNoToken) {
  std::vector<std::vector<std::int32_t>> prompts, alone;
  for (std::uint32_t i = 0; i < 6; ++i) {
    prompts.push_back(RandomPrompt(40, 100 + i));
    alone.push_back(Reference(prompts.back(), 60));
  }
  MetricRegistry metrics;
  EngineSetup setup;
  setup.pool_rows = 240;  // six prompts fit, six finished sequences (100 rows) don't
  setup.metrics = &metrics;
  TestEngine engine(setup);
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  for (const auto& prompt : prompts) listeners.push_back(engine.Start(Greedy(prompt, 60)).second);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_TRUE(listeners[i]->Wait().status.ok());
    EXPECT_EQ(listeners[i]->ids(), alone[i]);
    EXPECT_EQ(listeners[i]->admissions(), 1);
  }
  EXPECT_TRUE(engine.ComesBackEmpty());
  EXPECT_GT(engine->GetStats().preemptions, 0);
  EXPECT_NE(metrics.SerializeText().find("baton_preemptions_total{model=\"tiny\"}"),
            std::string::npos);
}

TEST(EngineBatching, PreemptionTakesTheYoungestOfTheLowestPriority) {
  EngineSetup setup;
  setup.pool_rows = 160;
  TestEngine engine(setup);
  EngineRequest important = Greedy(RandomPrompt(40, 1), 60);
  EngineRequest other = Greedy(RandomPrompt(40, 2), 60);
  other.priority = -1;
  const auto low = engine.Start(other).second;  // older, but less important
  ASSERT_TRUE(low->WaitTokens(1));
  const auto high = engine.Start(important).second;
  const FinishInfo high_info = high->Wait();
  const FinishInfo low_info = low->Wait();
  EXPECT_EQ(high_info.computed_tokens, 40);  // never recomputed
  EXPECT_GE(low_info.computed_tokens, 40);
  EXPECT_EQ(high->ids(), Reference(important.tokens, 60));
  EXPECT_EQ(low->ids(), Reference(other.tokens, 60));
}

// Case smp-01: with temperature 0 every cut gives the argmax, alone and beside a random neighbour,
// which stays random.
TEST(EngineBatching, GreedyIgnoresTopKAndTopPBesideARandomNeighbour) {
  TestEngine engine;
  const auto prompt = RandomPrompt(30, 1);
  const auto argmax = Reference(prompt, 12);
  EngineRequest random = Greedy(RandomPrompt(40, 2), 200);
  random.sampling.temperature = 1.3;
  for (const bool beside : {false, true}) {
    std::vector<std::shared_ptr<RecordingListener>> neighbours;
    for (const int top_k : {-1, 0, 1, 10, 1000000}) {
      for (const double top_p : {0.1, 1.0}) {
        if (beside) neighbours.push_back(engine.Start(random).second);
        EngineRequest greedy = Greedy(prompt, 12);
        greedy.sampling.top_k = top_k;
        greedy.sampling.top_p = top_p;
        EXPECT_EQ(engine.Run(greedy), argmax) << top_k << " " << top_p;
      }
    }
    for (const auto& neighbour : neighbours) neighbour->Wait();
    if (beside) {
      EXPECT_NE(neighbours[0]->ids(), neighbours[1]->ids());
    }
  }
}

// Case smp-02.
TEST(EngineBatching, SeedsDoNotDependOnTheNeighbours) {
  EngineRequest a = Greedy(RandomPrompt(30, 1), 16);
  a.sampling.temperature = 0.8;
  a.sampling.seed = 42;
  EngineRequest b = Greedy(RandomPrompt(50, 2), 40);
  b.sampling.temperature = 1.3;
  TestEngine engine;
  const std::vector<std::int32_t> alone = engine.Run(a);
  EXPECT_EQ(engine.Run(a), alone);  // a repeat starts from the seed
  for (const bool seeded : {false, true}) {
    if (seeded) b.sampling.seed = 7;
    for (int round = 0; round < 4; ++round) {
      const auto neighbour = engine.Start(b).second;
      if (round % 2) neighbour->WaitTokens(20);
      EXPECT_EQ(engine.Run(a), alone);
      neighbour->Wait();
    }
  }
  EngineRequest greedy = a;
  greedy.sampling.temperature = 0;
  EXPECT_NE(engine.Run(greedy), alone);
  b.sampling.seed.reset();
  EXPECT_NE(engine.Run(b), engine.Run(b));  // without a seed each run draws its own
}

// A random adapter on some linear layers of the tiny model.
LoraAdapter RandomAdapter(const std::string& name, std::uint32_t seed) {
  const ModelConfig& config = TinyModel().model->config();
  std::mt19937 rng(seed);
  LoraAdapter adapter;
  adapter.name = adapter.digest = name;
  adapter.max_rank = 4;
  adapter.layers.resize(static_cast<std::size_t>(config.layers));
  const auto random = [&](std::int64_t n) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& x : values) x = (static_cast<float>(rng() % 2001) - 1000.f) * 3e-4f;
    return values;
  };
  for (LoraLayer& layer : adapter.layers) {
    for (const char* module : {"q_proj", "v_proj"}) {
      LoraModule m;
      m.rank = 4;
      m.in = config.hidden;
      m.out = (module[0] == 'q' ? config.heads : config.kv_heads) * config.head_dim;
      m.a = random(m.rank * m.in);
      m.b = random(m.out * m.rank);
      m.scale = 2;
      layer.emplace(module, std::move(m));
    }
  }
  return adapter;
}

TEST(EngineBatching, AdaptersInOneBatchEqualEachAlone) {
  SerialExecutor executor;
  auto adapters = std::make_shared<AdapterSet>(TinyModel().model);
  ASSERT_EQ(*adapters->Add(RandomAdapter("a", 1), executor), 0);
  ASSERT_EQ(*adapters->Add(RandomAdapter("b", 2), executor), 1);
  EngineSetup setup;
  setup.adapters = adapters;
  const auto prompt = RandomPrompt(90, 4);
  std::vector<std::vector<std::int32_t>> alone;
  TestEngine engine(setup);
  for (int adapter = -1; adapter < 2; ++adapter) {
    EngineRequest request = Greedy(prompt, kTokens);
    request.adapter = adapter;
    alone.push_back(engine.Run(request));
  }
  EXPECT_EQ(alone[0], Reference(prompt, kTokens));
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_NE(alone[1], alone[2]);
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  for (int i = 0; i < 9; ++i) {
    EngineRequest request = Greedy(prompt, kTokens);
    request.adapter = i % 3 - 1;
    listeners.push_back(engine.Start(request).second);
  }
  for (std::size_t i = 0; i < listeners.size(); ++i) {
    listeners[i]->Wait();
    EXPECT_EQ(listeners[i]->ids(), alone[i % 3]) << i;
  }
}

TEST(EngineBatching, PrefixCacheChangesNoToken) {
  TestEngine engine;
  for (const std::size_t n : {63, 64, 65, 127, 128, 129, 200, 256}) {
    const auto prompt = RandomPrompt(n, static_cast<std::uint32_t>(n));
    const auto cold = Reference(prompt, kTokens);
    for (int round = 0; round < 2; ++round) {
      const auto listener = engine.Start(Cached(Greedy(prompt, kTokens))).second;
      const FinishInfo info = listener->Wait();
      EXPECT_EQ(listener->ids(), cold) << n;
      const std::int64_t expected = round == 0 ? 0 : static_cast<std::int64_t>((n - 1) / 64 * 64);
      EXPECT_EQ(info.cached_tokens, expected) << n;
      EXPECT_EQ(info.computed_tokens + info.cached_tokens, info.prompt_tokens);
    }
    // A longer prompt goes on from the same blocks.
    auto longer = prompt;
    const auto tail = RandomPrompt(40, 999);
    longer.insert(longer.end(), tail.begin(), tail.end());
    const auto listener = engine.Start(Cached(Greedy(longer, kTokens))).second;
    EXPECT_EQ(listener->Wait().cached_tokens, static_cast<std::int64_t>(n / 64 * 64));
    EXPECT_EQ(listener->ids(), Reference(longer, kTokens));
  }
  EXPECT_TRUE(engine.ComesBackEmpty());
}

// Case pfx-04: the second reply equals the first, log-probabilities too, and the true count is
// told.
TEST(EngineBatching, AWholePromptThatIsCachedGivesTheSameReply) {
  for (const std::size_t n : {64, 128, 100, 1}) {
    for (const std::int64_t max_tokens : {1, 8}) {
      TestEngine engine;
      EngineRequest request = Cached(Greedy(RandomPrompt(n, 70), max_tokens));
      request.sampling.logprobs = true;
      request.sampling.top_logprobs = 3;
      const auto first = engine.Start(request).second;
      EXPECT_EQ(first->Wait().cached_tokens, 0);
      const auto second = engine.Start(request).second;
      const FinishInfo info = second->Wait();
      EXPECT_TRUE(info.status.ok()) << info.status;
      EXPECT_EQ(info.cached_tokens, static_cast<std::int64_t>((n - 1) / 64 * 64));
      EXPECT_GE(info.computed_tokens, 1) << "the last token runs for its logits";
      EXPECT_EQ(second->ids(), first->ids());
      EXPECT_EQ(second->text(), first->text());
      const auto a = first->logprobs(), b = second->logprobs();
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        for (std::size_t k = 0; k < a[i].size(); ++k) {
          EXPECT_EQ(a[i][k].token_id, b[i][k].token_id);
          EXPECT_EQ(a[i][k].logprob, b[i][k].logprob);
        }
      }
      // A third prompt that goes on behind the reply still finds its blocks.
      auto longer = request.tokens;
      const auto tail = RandomPrompt(30, 71);
      longer.insert(longer.end(), tail.begin(), tail.end());
      const auto third = engine.Start(Cached(Greedy(longer, 8))).second;
      EXPECT_EQ(third->Wait().cached_tokens, static_cast<std::int64_t>(n / 64 * 64));
      EXPECT_EQ(third->ids(), Reference(longer, 8));
    }
  }
}

TEST(EngineBatching, SpacesAreKeptApart) {
  TestEngine engine;
  const auto prompt = RandomPrompt(150, 5);
  engine.Run(Cached(Greedy(prompt, 4)));
  EngineRequest other = Greedy(prompt, 4);
  other.cache = KeysFor(prompt, "another consumer");
  EXPECT_EQ(engine.Start(other).second->Wait().cached_tokens, 0);
}

TEST(EngineBatching, BlocksAreVisibleOnlyWhenComplete) {
  const auto prefix = RandomPrompt(192, 8);
  std::vector<EngineRequest> requests;
  std::vector<std::vector<std::int32_t>> serial;
  for (std::uint32_t i = 0; i < 32; ++i) {
    auto prompt = prefix;
    const auto tail = RandomPrompt(5 + i, 1000 + i);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    serial.push_back(Reference(prompt, 8));
    requests.push_back(Cached(Greedy(prompt, 8)));
  }
  for (int round = 0; round < 5; ++round) {
    EngineSetup setup;
    setup.options.step_tokens = 48 + 16 * round;
    setup.pool_rows = round % 2 ? 1200 : 8192;
    TestEngine engine(setup);
    std::vector<std::shared_ptr<RecordingListener>> listeners;
    for (const auto& request : requests) listeners.push_back(engine.Start(request).second);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(listeners[i]->Wait().status.ok());
      EXPECT_EQ(listeners[i]->ids(), serial[i]);
    }
    EXPECT_TRUE(engine.ComesBackEmpty());
  }
}

TEST(EngineBatching, CachedBlocksMakeRoomWhenPagesAreShort) {
  EngineSetup setup;
  setup.pool_rows = 320;
  TestEngine engine(setup);
  for (std::uint32_t i = 0; i < 10; ++i) {
    const auto prompt = RandomPrompt(200, i);
    EXPECT_EQ(engine.Run(Cached(Greedy(prompt, 20))), Reference(prompt, 20));
  }
  EXPECT_EQ(engine->GetStats().preemptions, 0);
  EXPECT_TRUE(engine.ComesBackEmpty());
}

// Two engines over one pool: the idle one's cache must not starve the other.
TEST(EngineBatching, EnginesGiveCachedPagesToEachOther) {
  const TinyNode& node = TinyModel();
  auto pool = *PagePool::Create({.head_dim = 16, .dtype = DType::kF32}, TinyPages(320));
  ComputeGate gate;
  SerialExecutor executor;
  std::vector<std::unique_ptr<Engine>> engines;
  for (const char* name : {"a", "b"}) {
    EngineResources resources;
    resources.model = node.model;
    resources.pool = pool;
    resources.gate = &gate;
    resources.executor = &executor;
    engines.push_back(*Engine::Create(std::move(resources), {.name = name}));
  }
  const auto prompt = RandomPrompt(256, 3);
  for (int round = 0; round < 4; ++round) {
    for (auto& engine : engines) {
      auto listener = std::make_shared<RecordingListener>();
      ASSERT_TRUE(engine->Submit(Cached(Greedy(prompt, 8)), listener).ok());
      EXPECT_TRUE(listener->Wait().status.ok());
      EXPECT_EQ(listener->ids(), Reference(prompt, 8));
    }
  }
}

}  // namespace
}  // namespace baton
