// A tiny model, engines over it, and a listener that remembers.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/engine/engine.h"
#include "common/weights/model_source.h"
#include "gtest/gtest.h"
#include "kernels/kv_write.h"
#include "tests/support/tiny_model.h"

namespace baton {

// Waits are bounded, so that a hang is a failure.
inline constexpr std::chrono::seconds kPatience(60);

struct TinyNode {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
};

// Loaded once per process and shape.
inline const TinyNode& TinyModel(const TinyLlama& shape = {}) {
  static std::map<std::uint32_t, TinyNode> nodes;
  const auto [it, added] = nodes.try_emplace(shape.seed);
  if (!added) return it->second;
  const std::filesystem::path dir =
      std::filesystem::temp_directory_path() /
      ("baton_engine_test_" + std::to_string(getpid()) + "_" + std::to_string(shape.seed));
  WriteTinyLlama(dir, shape);
  auto source = ModelSource::Open(dir.string());
  if (!source.ok()) throw std::runtime_error(source.status().ToString());
  SerialExecutor executor;
  auto model = Model::Load(**source, {.weight_dtype = WeightDType::kF32, .executor = &executor});
  if (!model.ok()) throw std::runtime_error(model.status().ToString());
  auto tokenizer =
      Tokenizer::FromJson((*source)->tokenizer_json(), (*source)->tokenizer_config_json());
  if (!tokenizer.ok()) throw std::runtime_error(tokenizer.status().ToString());
  it->second = {*model, *std::move(tokenizer)};
  std::filesystem::remove_all(dir);
  return it->second;
}

class RecordingListener : public RequestListener {
 public:
  void OnAdmitted(const Admission& admission) override {
    MutexLock lock(mu_);
    ++admissions_;
    admission_ = admission;
    changed_.NotifyAll();
  }
  void OnKvReady(KvReady ready) override {
    MutexLock lock(mu_);
    kv_.push_back(std::move(ready));
  }
  void OnStates(StatesReady states) override {
    MutexLock lock(mu_);
    states_.push_back(std::move(states));
  }
  void OnTokens(TokenDelta delta) override {
    MutexLock lock(mu_);
    text_ += delta.text;
    deltas_.push_back(delta.text);
    ids_.insert(ids_.end(), delta.token_ids.begin(), delta.token_ids.end());
    logprobs_.insert(logprobs_.end(), delta.logprobs.begin(), delta.logprobs.end());
    changed_.NotifyAll();
  }
  void OnFinished(const FinishInfo& info) override {
    MutexLock lock(mu_);
    ++finishes_;
    info_ = info;
    changed_.NotifyAll();
  }

  FinishInfo Wait() {
    MutexLock lock(mu_);
    EXPECT_TRUE(changed_.WaitFor(mu_, kPatience, [this] { return finishes_ > 0; }));
    return info_;
  }
  Admission WaitAdmitted() {
    MutexLock lock(mu_);
    EXPECT_TRUE(
        changed_.WaitFor(mu_, kPatience, [this] { return admissions_ > 0 || finishes_ > 0; }));
    return admission_;
  }
  bool WaitTokens(std::size_t n) {
    MutexLock lock(mu_);
    return changed_.WaitFor(mu_, kPatience, [&] { return ids_.size() >= n || finishes_ > 0; });
  }
  void DropLanding() {
    std::shared_ptr<PrefixLanding> landing;
    MutexLock lock(mu_);
    landing.swap(admission_.landing);
  }
  std::vector<std::int32_t> ids() const {
    MutexLock lock(mu_);
    return ids_;
  }
  std::string text() const {
    MutexLock lock(mu_);
    return text_;
  }
  std::vector<std::string> deltas() const {
    MutexLock lock(mu_);
    return deltas_;
  }
  std::vector<std::vector<TokenLogprobEntry>> logprobs() const {
    MutexLock lock(mu_);
    return logprobs_;
  }
  std::vector<KvReady> TakeKv() {
    MutexLock lock(mu_);
    return std::exchange(kv_, {});
  }
  std::vector<StatesReady> TakeStates() {
    MutexLock lock(mu_);
    return std::exchange(states_, {});
  }
  int finishes() const {
    MutexLock lock(mu_);
    return finishes_;
  }
  int admissions() const {
    MutexLock lock(mu_);
    return admissions_;
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  Admission admission_;
  std::vector<KvReady> kv_;
  std::vector<StatesReady> states_;
  std::vector<std::int32_t> ids_;
  std::string text_;
  std::vector<std::string> deltas_;
  std::vector<std::vector<TokenLogprobEntry>> logprobs_;
  FinishInfo info_;
  int admissions_ = 0;
  int finishes_ = 0;
};

// Pages of the tiny model that hold `rows` rows.
inline std::int64_t TinyPages(std::int64_t rows, const TinyLlama& shape = {}) {
  return (rows + kPageRows - 1) / kPageRows * shape.layers * shape.kv_heads;
}

struct EngineSetup {
  EngineOptions options{.name = "tiny", .step_tokens = 128};
  std::int64_t pool_rows = 8192;
  MetricRegistry* metrics = nullptr;
  TinyLlama shape = {};
  std::shared_ptr<const AdapterSet> adapters = nullptr;
  int threads = 1;
};

// An engine with a pool and a gate of its own.
class TestEngine {
 public:
  explicit TestEngine(const EngineSetup& setup = {}) {
    const TinyNode& node = TinyModel(setup.shape);
    pool_ = *PagePool::Create({.head_dim = setup.shape.head_dim, .dtype = DType::kF32},
                              TinyPages(setup.pool_rows, setup.shape));
    EngineResources resources;
    resources.model = node.model;
    resources.tokenizer = node.tokenizer;
    resources.pool = pool_;
    resources.gate = &gate_;
    if (setup.threads > 1) executor_ = MakeThreadPool(setup.threads);
    resources.executor = executor_.get();
    resources.adapters = setup.adapters;
    resources.metrics = setup.metrics;
    auto engine = Engine::Create(std::move(resources), setup.options);
    if (!engine.ok()) throw std::runtime_error(engine.status().ToString());
    engine_ = *std::move(engine);
  }

  Engine* operator->() { return engine_.get(); }
  PagePool& pool() { return *pool_; }

  std::pair<RequestHandle, std::shared_ptr<RecordingListener>> Start(EngineRequest request) {
    auto listener = std::make_shared<RecordingListener>();
    auto handle = engine_->Submit(std::move(request), listener);
    if (!handle.ok()) throw std::runtime_error(handle.status().ToString());
    return {*handle, listener};
  }
  std::vector<std::int32_t> Run(EngineRequest request) {
    auto [handle, listener] = Start(std::move(request));
    EXPECT_TRUE(listener->Wait().status.ok());
    return listener->ids();
  }
  // True when, with the cache cleared, nothing is held or reserved within the patience.
  bool ComesBackEmpty() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    do {
      engine_->ClearPrefixCache();
      const PagePool::Stats stats = pool_->GetStats();
      if (stats.held == 0 && stats.reserved == 0) return true;
      usleep(2000);
    } while (std::chrono::steady_clock::now() < deadline);
    return false;
  }

 private:
  ComputeGate gate_;
  std::unique_ptr<Executor> executor_ = std::make_unique<SerialExecutor>();
  std::shared_ptr<PagePool> pool_;
  std::unique_ptr<Engine> engine_;
};

inline std::vector<std::int32_t> RandomPrompt(std::size_t n, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::int32_t> tokens(n);
  for (auto& token : tokens) token = static_cast<std::int32_t>(rng() % 256);
  return tokens;
}

inline EngineRequest Greedy(std::vector<std::int32_t> tokens, std::int64_t max_tokens) {
  EngineRequest request;
  request.tokens = std::move(tokens);
  request.sampling.temperature = 0;
  request.stop.max_tokens = max_tokens;
  request.stop.ignore_eos = true;
  return request;
}

// Keys as a node makes them.
inline CacheKeys KeysFor(const std::vector<std::int32_t>& tokens, std::string exact,
                         std::string approx = "") {
  CacheKeys keys;
  keys.blocks = ChainHashes(tokens, ChainSeed("tiny", "test"));
  keys.exact_space = std::move(exact);
  keys.approx_space = std::move(approx);
  return keys;
}

inline EngineRequest Producer(const std::vector<std::int32_t>& tokens) {
  EngineRequest request;
  request.tokens = tokens;
  request.prefill_only = true;
  request.cache = KeysFor(tokens, "base");
  return request;
}

// What the network does: rows of one report that the landing wants. Returns (layer, row) pairs.
inline std::int64_t Copy(const KvReady& ready, const PrefixLanding& landing,
                         const KvPageLayout& layout) {
  const std::int32_t begin = std::max(ready.begin, landing.begin);
  const std::int32_t end = std::min(ready.end, landing.end);
  for (int head = 0; head < landing.kv_heads && begin < end; ++head) {
    const auto& to = landing.pages[static_cast<std::size_t>(ready.layer * landing.kv_heads + head)];
    for (std::int32_t page = begin / kPageRows; page * kPageRows < end; ++page) {
      const PageRef& from = ready.pages[static_cast<std::size_t>(head)]
                                       [static_cast<std::size_t>(page - ready.begin / kPageRows)];
      CopyKvRows(layout, from.data() + layout.k_offset(),
                 to[static_cast<std::size_t>(page - landing.first_page)].data(),
                 std::max(0, begin - page * kPageRows),
                 std::min(kPageRows, end - page * kPageRows));
    }
  }
  return std::max(0, end - begin);
}

inline EngineRequest Cached(EngineRequest request, std::string approx = "") {
  request.cache = KeysFor(request.tokens, "exact", std::move(approx));
  return request;
}

}  // namespace baton
