// The forward pass on tiny random models, against Hugging Face Transformers and against itself.
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "common/model/paged_kv_view.h"
#include "common/weights/model_config.h"
#include "gmock/gmock.h"
#include "tests/common/model/model_fixture.h"
#include "tests/support/sanitized.h"

#if !BATON_SANITIZED  // sanitizers have an operator new of their own
// Counts allocations, to hold the forward pass to its promise of making none in the steady state.
static std::atomic<std::int64_t> g_allocations = 0;
// Not inlined: GCC would take the pair malloc and delete for a mismatch.
__attribute__((noinline)) void* operator new(std::size_t size) {
  ++g_allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, std::size_t) noexcept { std::free(p); }
#endif

namespace baton {
namespace {

namespace fs = std::filesystem;

std::vector<std::int32_t> EveryFourth(std::size_t n) {
  std::vector<std::int32_t> rows;
  for (std::size_t i = 0; i < n; i += 4) rows.push_back(static_cast<std::int32_t>(i));
  return rows;
}

double Tolerance(const Reference& ref, const std::string& prefix) {
  return std::max(1e-4, 2 * ref.Scalar(prefix + "eager_vs_sdpa").get<double>());
}

class TinyModel : public ::testing::TestWithParam<const char*> {
 protected:
  SerialExecutor executor_;
  Reference ref_{"tiny"};
  std::vector<std::int32_t> tokens_ = ref_.I32("tokens");
  std::string prefix_ = std::string(GetParam()) + "/";
  std::shared_ptr<const Model> model_ = LoadModel(ModelTestData(GetParam()), executor_);
  ForwardPass pass_{model_, nullptr, executor_};
};

TEST_P(TinyModel, LogitsAgreeWithTransformers) {
  const auto sequence = NewSequence(*model_, 40);
  const auto hidden = RunHidden(pass_, *model_, sequence->view(), tokens_);
  const auto logits = LogitsOf(pass_, *model_, hidden, EveryFourth(tokens_.size()));
  const double diff = MaxAbsDiff(logits, ref_.F32(prefix_ + "logits"));
  RecordProperty("max_abs_diff", std::to_string(diff));
  EXPECT_LE(diff, Tolerance(ref_, prefix_));
}

TEST_P(TinyModel, GreedyTokensAgreeWithTransformers) {
  const auto want = ref_.I32(prefix_ + "greedy");
  const auto gaps = ref_.F32(prefix_ + "greedy_gap");
  const std::vector<std::int32_t> prompt(tokens_.begin(), tokens_.begin() + 16);
  const auto got = Greedy(pass_, *model_, {prompt}, static_cast<int>(want.size()))[0];
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;
    ASSERT_LE(gaps[i], 1e-4) << "at token " << i;
    break;  // what follows a tie may differ
  }
}

TEST_P(TinyModel, HooksAndSurprisalAgreeWithTransformers) {
  const ModelConfig& c = model_->config();
  const auto sequence = NewSequence(*model_, 40);
  KeepCapture kept(static_cast<int>(c.layers), c.hidden, c.kv_heads * c.head_dim);
  const auto hidden =
      RunHidden(pass_, *model_, sequence->view(), tokens_, 0, 13, kNoAdapter, &kept);
  for (int layer = 0; layer < c.layers; ++layer) {
    const std::string i = "." + std::to_string(layer);
    EXPECT_LE(MaxAbsDiff(kept.k[layer], ref_.F32(prefix_ + "k_pre_rope" + i)), 1e-4) << layer;
    EXPECT_LE(MaxAbsDiff(kept.v[layer], ref_.F32(prefix_ + "v" + i)), 1e-4) << layer;
    EXPECT_LE(MaxAbsDiff(kept.h_in[layer], ref_.F32(prefix_ + "h_in" + i)), 1e-4) << layer;
  }
  const std::vector<std::int32_t> targets(tokens_.begin() + 1, tokens_.end());
  EXPECT_LE(MaxAbsDiff(pass_.Surprisal(hidden.data(), targets), ref_.F32(prefix_ + "surprisal")),
            1e-4);
}

TEST_P(TinyModel, AHooksInputTimesItsScaleIsTheStream) {
  const ModelConfig& c = model_->config();
  const auto sequence = NewSequence(*model_, 40);
  KeepCapture kept(static_cast<int>(c.layers), c.hidden, c.kv_heads * c.head_dim);
  RunHidden(pass_, *model_, sequence->view(), tokens_, 0, 13, kNoAdapter, &kept);
  const float* embedded = pass_.Embed(tokens_);
  const auto& scale = kept.rms[0];
  ASSERT_EQ(scale.size(), tokens_.size());
  for (std::size_t r = 0; r < scale.size(); ++r) {
    for (std::int64_t i = 0; i < c.hidden; ++i) {
      const std::size_t at = r * static_cast<std::size_t>(c.hidden) + static_cast<std::size_t>(i);
      EXPECT_NEAR(kept.h_in[0][at] * scale[r], embedded[at], 1e-6 * (1 + scale[r]));
    }
  }
}

TEST_P(TinyModel, AHookChangesNoBit) {
  const ModelConfig& c = model_->config();
  const auto plain = NewSequence(*model_, 40);
  const auto hooked = NewSequence(*model_, 40);
  KeepCapture kept(static_cast<int>(c.layers), c.hidden, c.kv_heads * c.head_dim);
  EXPECT_EQ(RunHidden(pass_, *model_, plain->view(), tokens_),
            RunHidden(pass_, *model_, hooked->view(), tokens_, 0, 1 << 30, kNoAdapter, &kept));
}

// Any cut into layer ranges, each continued by another pass from injected hidden states over a
// cache that holds only that range's layers, gives the bits of the whole.
TEST_P(TinyModel, LayerRangesFromInjectedStatesEqualTheWhole) {
  const int layers = static_cast<int>(model_->config().layers);
  const std::int64_t d = model_->config().hidden;
  const std::int32_t n = static_cast<std::int32_t>(tokens_.size());
  const auto positions = Iota(n);
  const auto whole_sequence = NewSequence(*model_, n);
  const auto whole = RunHidden(pass_, *model_, whole_sequence->view(), tokens_);
  const auto run = [&](int begin, int end, std::vector<float> states) {
    ForwardPass pass(model_, nullptr, executor_);
    const auto sequence = NewSequence(*model_, n);
    const SequenceSlice slice{0, n, &sequence->view(), kNoAdapter};
    pass.RunLayers(begin, end, states.data(), {.positions = positions, .sequences = {&slice, 1}},
                   nullptr);
    return states;
  };
  const float* embedded = pass_.Embed(tokens_);
  const std::vector<float> start(embedded, embedded + n * d);
  for (int i = 0; i <= layers; ++i) {
    for (int j = i; j <= layers; ++j) {
      EXPECT_EQ(run(j, layers, run(i, j, run(0, i, start))), whole) << i << " " << j;
    }
  }
}

TEST_P(TinyModel, ResultsDoNotDependOnBatchChunksOrThreads) {
  const auto pool = MakeThreadPool(2);
  ForwardPass threaded(model_, nullptr, *pool);
  const std::int64_t d = model_->config().hidden;
  const auto alone = NewSequence(*model_, 40);
  const auto want = RunHidden(pass_, *model_, alone->view(), tokens_);
  for (std::int64_t chunk : {1, 7, 16, 33}) {
    const auto sequence = NewSequence(*model_, 40);
    EXPECT_EQ(RunHidden(threaded, *model_, sequence->view(), tokens_, 0, chunk), want) << chunk;
  }
  // Three sequences in one batch: 5 + 40 + 1 rows; the middle one is compared.
  std::vector<std::int32_t> batch_tokens = {9, 8, 7, 6, 5};
  batch_tokens.insert(batch_tokens.end(), tokens_.begin(), tokens_.end());
  batch_tokens.push_back(11);
  auto positions = Iota(5);
  for (std::int32_t p : Iota(40)) positions.push_back(p);
  positions.push_back(0);
  const auto a = NewSequence(*model_, 5), b = NewSequence(*model_, 40), c = NewSequence(*model_, 1);
  const SequenceSlice slices[] = {{0, 5, &a->view(), kNoAdapter},
                                  {5, 45, &b->view(), kNoAdapter},
                                  {45, 46, &c->view(), kNoAdapter}};
  float* h = threaded.Embed(batch_tokens);
  threaded.RunLayers(0, static_cast<int>(model_->config().layers), h,
                     {.positions = positions, .sequences = slices}, nullptr);
  EXPECT_EQ(std::vector<float>(h + 5 * d, h + 45 * d), want);
  const auto rows = EveryFourth(40);
  const auto all = LogitsOf(pass_, *model_, want, rows);
  const std::int64_t vocab = model_->config().vocab;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(LogitsOf(threaded, *model_, want, {rows[i]}),
              std::vector<float>(all.begin() + i * vocab, all.begin() + (i + 1) * vocab));
  }
}

#if !BATON_SANITIZED
TEST_P(TinyModel, ADecodeStepAllocatesNothing) {
  const auto sequence = NewSequence(*model_, 40);
  const std::vector<std::int32_t> prompt(tokens_.begin(), tokens_.begin() + 16);
  RunHidden(pass_, *model_, sequence->view(), prompt);
  const SequenceSlice slice{0, 1, &sequence->view(), kNoAdapter};
  const std::int32_t row = 0;
  const auto step = [&](std::int32_t position) {
    float* h = pass_.Embed({&tokens_[position], 1});
    pass_.RunLayers(0, static_cast<int>(model_->config().layers), h,
                    {.positions = {&position, 1}, .sequences = {&slice, 1}}, nullptr);
    return pass_.Logits(h, {&row, 1})[0];
  };
  step(16);
  const std::int64_t before = g_allocations;
  for (std::int32_t position = 17; position < 24; ++position) step(position);
  EXPECT_EQ(g_allocations - before, 0);
}
#endif

INSTANTIATE_TEST_SUITE_P(Families, TinyModel,
                         ::testing::Values("tiny_llama", "tiny_llama_sharded", "tiny_qwen2",
                                           "tiny_qwen3"),
                         [](const auto& info) { return std::string(info.param); });

class TinyLlamaTest : public ::testing::Test {
 protected:
  SerialExecutor executor_;
  Reference ref_{"tiny"};
  std::vector<std::int32_t> tokens_ = ref_.I32("tokens");
};

// The folder with its config.json replaced.
class SwappedConfig {
 public:
  SwappedConfig(const std::string& folder, const std::string& config)
      : path_(fs::path(::testing::TempDir()) / ("baton_model_" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    for (const auto& entry : fs::directory_iterator(ModelTestData(folder))) {
      if (entry.path().extension() == ".safetensors") fs::copy(entry.path(), path_);
    }
    std::ofstream(path_ / "config.json") << config;
  }
  ~SwappedConfig() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST_F(TinyLlamaTest, RopeScalingAgreesWithTransformers) {
  for (const std::string name : {"linear", "llama3"}) {
    const SwappedConfig folder("tiny_llama",
                               ReadTestFile(ModelTestData("tiny_llama/config." + name + ".json")));
    const auto model = LoadModel(folder.path(), executor_);
    const auto inv_freq = RopeInverseFrequencies(model->config());
    const auto want = ref_.F32("tiny_llama." + name + "/inv_freq");
    ASSERT_EQ(inv_freq.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(inv_freq[i] / want[i], 1.0f, 1.2e-7f) << name << " " << i;  // one last bit
    }
    ForwardPass pass(model, nullptr, executor_);
    const auto sequence = NewSequence(*model, 40);
    const auto hidden = RunHidden(pass, *model, sequence->view(), tokens_);
    EXPECT_LE(MaxAbsDiff(LogitsOf(pass, *model, hidden, EveryFourth(40)),
                         ref_.F32("tiny_llama." + name + "/logits")),
              1e-4)
        << name;
  }
}

// Weights or pages in a narrow type lose no more than HF's own run in that type does.
TEST_F(TinyLlamaTest, NarrowWeightsAndPagesStayWithinTheErrorOfTransformers) {
  const auto want = ref_.F32("tiny_llama/logits");
  const double bf16 = ref_.Scalar("tiny_llama/hf_bf16_rms_error");
  const double fp16 = ref_.Scalar("tiny_llama/hf_fp16_rms_error");
  struct Case {
    WeightDType weights;
    DType pages;
    double rms;
  };
  for (const Case& c :
       {Case{WeightDType::kF32, DType::kF16, fp16}, Case{WeightDType::kF32, DType::kBF16, bf16},
        Case{WeightDType::kF16, DType::kF16, fp16}, Case{WeightDType::kBF16, DType::kBF16, bf16}}) {
    const auto model = LoadModel(ModelTestData("tiny_llama"), executor_, c.weights);
    ForwardPass pass(model, nullptr, executor_);
    const auto sequence = NewSequence(*model, 40, c.pages);
    const auto hidden = RunHidden(pass, *model, sequence->view(), tokens_);
    const double rms = RmsDiff(LogitsOf(pass, *model, hidden, EveryFourth(40)), want);
    std::printf("%s weights, %s pages: rms error %.2e (HF %.2e)\n", WeightDTypeName(c.weights),
                DTypeName(c.pages), rms, c.rms);
    EXPECT_LE(rms, c.rms) << WeightDTypeName(c.weights) << " " << DTypeName(c.pages);
    EXPECT_GT(rms, 1e-5) << "the narrow type was not used";
  }
}

// A full cache, answered in the ways a compressing memory would.
class EditedView final : public KvView {
 public:
  enum class Mode { kSplit, kPrunedHead, kMaskedHead, kTwiceHalf };
  EditedView(SequenceTable& table, const KvPageLayout& layout, Mode mode)
      : full_(table, layout), table_(table), mode_(mode) {}

  const KvPageLayout& layout() const override { return full_.layout(); }
  void Append(int layer, const KvRows& rows) override { full_.Append(layer, rows); }
  const LayerSegments& Select(int layer, const QueryBlock& q) override {
    EXPECT_NE(q.q, nullptr);
    EXPECT_GT(q.positions.size(), 0u);
    answer_.segments.clear();
    answer_.offsets = {0};
    for (int h = 0; h < table_.kv_heads(); ++h) {
      AddHead(layer, h);
      answer_.offsets.push_back(static_cast<std::int32_t>(answer_.segments.size()));
    }
    return answer_;
  }

 private:
  void AddHead(int layer, int h) {
    const std::byte* const* pages = table_.pages(layer, h).data();
    const std::int32_t rows = table_.num_rows(layer, h);
    const bool edited = (layer + h) % 2 == 1;  // other lengths per layer and head
    switch (mode_) {
      case Mode::kSplit:
        answer_.segments.push_back({pages, edited ? 16 : 32, nullptr, true});
        answer_.segments.push_back(
            {pages + (edited ? 1 : 2), rows - (edited ? 16 : 32), nullptr, true});
        break;
      case Mode::kPrunedHead:
        if (edited) {
          answer_.segments.push_back({pages, 16, nullptr, true});
          answer_.segments.push_back({pages + 2, rows - 32, nullptr, true});
        } else {
          answer_.segments.push_back({pages, rows, nullptr, true});
        }
        break;
      case Mode::kMaskedHead:
        answer_.segments.push_back({pages, rows, edited ? masked_.data() : zero_.data(), true});
        break;
      case Mode::kTwiceHalf:  // every row twice, each with half the weight
        answer_.segments.push_back({pages, rows, half_.data(), true});
        answer_.segments.push_back({pages, rows, half_.data(), true});
        break;
    }
  }

  static std::vector<float> Mask() {
    std::vector<float> bias(64, 0.0f);
    std::fill(bias.begin() + 16, bias.begin() + 32, -std::numeric_limits<float>::infinity());
    return bias;
  }

  PagedKvView full_;
  SequenceTable& table_;
  Mode mode_;
  LayerSegments answer_;
  std::vector<float> zero_ = std::vector<float>(64, 0.0f);
  std::vector<float> half_ = std::vector<float>(64, -std::log(2.0f));
  std::vector<float> masked_ = Mask();
};

class ViewTest : public TinyLlamaTest {
 protected:
  // 40 tokens through the full cache, then 5 more through `mode` (or the full cache).
  std::vector<float> Continue(const EditedView::Mode* mode) {
    const auto sequence = NewSequence(*model_, 45);
    RunHidden(pass_, *model_, sequence->view(), tokens_);
    if (mode == nullptr) return RunHidden(pass_, *model_, sequence->view(), kMore, 40);
    EditedView view(sequence->table(), sequence->layout(), *mode);
    return RunHidden(pass_, *model_, view, kMore, 40);
  }
  std::vector<float> Continue(EditedView::Mode mode) { return Continue(&mode); }

  const std::vector<std::int32_t> kMore = {17, 4, 99, 23, 150};
  std::shared_ptr<const Model> model_ = LoadModel(ModelTestData("tiny_llama"), executor_);
  ForwardPass pass_{model_, nullptr, executor_};
};

TEST_F(ViewTest, SegmentsOfUnequalLengthEqualTheFullCache) {
  EXPECT_LE(MaxAbsDiff(Continue(EditedView::Mode::kSplit), Continue(nullptr)), 1e-4);
}

TEST_F(ViewTest, PrunedRowsEqualMaskedRows) {
  const auto pruned = Continue(EditedView::Mode::kPrunedHead);
  EXPECT_LE(MaxAbsDiff(pruned, Continue(EditedView::Mode::kMaskedHead)), 1e-4);
  EXPECT_GT(MaxAbsDiff(pruned, Continue(nullptr)), 1e-2) << "pruning had no effect";
}

TEST_F(ViewTest, RowBiasWeighsRows) {
  EXPECT_LE(MaxAbsDiff(Continue(EditedView::Mode::kTwiceHalf), Continue(nullptr)), 1e-4);
}

// Case ldr-03: a tied model whose file also stores the (equal) head gives the same logits from one
// copy. One that differs is refused: tests/common/weights/model_source_test.cc.
TEST_F(TinyLlamaTest, AStoredHeadThatEqualsTheEmbeddingIsSharedWithIt) {
  const auto without = LoadModel(ModelTestData("tiny_llama"), executor_);
  const SwappedConfig folder("tiny_llama", ReadTestFile(ModelTestData("tiny_llama/config.json")));
  const std::string file = folder.path() + "/model.safetensors";
  std::string bytes = ReadTestFile(file);
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  auto header = nlohmann::json::parse(bytes.substr(8, size));
  std::string data = bytes.substr(8 + size);
  ASSERT_FALSE(header.contains("lm_head.weight"));
  auto head = header["model.embed_tokens.weight"];
  const std::size_t begin = head["data_offsets"][0], end = head["data_offsets"][1];
  head["data_offsets"] = {data.size(), data.size() + end - begin};
  data += data.substr(begin, end - begin);
  header["lm_head.weight"] = head;
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  size = text.size();
  std::ofstream(file, std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&size), sizeof(size)) << text << data;

  const auto with = LoadModel(folder.path(), executor_);
  EXPECT_EQ(with->weight_bytes(), without->weight_bytes());
  EXPECT_EQ(with->served_digest(), without->served_digest());
  const auto logits = [&](const std::shared_ptr<const Model>& model) {
    ForwardPass pass(model, nullptr, executor_);
    const auto sequence = NewSequence(*model, 40);
    return LogitsOf(pass, *model, RunHidden(pass, *model, sequence->view(), tokens_),
                    EveryFourth(40));
  };
  EXPECT_EQ(logits(with), logits(without));
}

TEST_F(TinyLlamaTest, ServedDigestNamesContentsAndDtype) {
  const auto f32 = LoadModel(ModelTestData("tiny_llama"), executor_);
  const auto again = LoadModel(ModelTestData("tiny_llama"), executor_);
  const auto bf16 = LoadModel(ModelTestData("tiny_llama"), executor_, WeightDType::kBF16);
  const auto other = LoadModel(ModelTestData("tiny_llama_sharded"), executor_);
  EXPECT_EQ(f32->served_digest(), again->served_digest());
  EXPECT_NE(f32->served_digest(), bf16->served_digest());
  EXPECT_NE(f32->served_digest(), other->served_digest());
  EXPECT_LT(bf16->weight_bytes(), f32->weight_bytes());
}

TEST_F(TinyLlamaTest, ProgressEndsAtTheTotal) {
  auto source = ModelSource::Open(ModelTestData("tiny_llama_sharded"));
  ASSERT_TRUE(source.ok()) << source.status();
  std::int64_t last = 0, all = 0;
  auto model = Model::Load(
      **source, {.executor = &executor_, .progress = [&](std::int64_t done, std::int64_t total) {
                   EXPECT_GT(done, last);
                   last = done;
                   all = total;
                 }});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(last, all);
  EXPECT_GT(all, 0);
}

TEST_F(TinyLlamaTest, AConfigThatDoesNotFitTheWeightsIsRefusedByName) {
  auto config = nlohmann::json::parse(ReadTestFile(ModelTestData("tiny_llama/config.json")));
  config["intermediate_size"] = 80;
  const SwappedConfig folder("tiny_llama", config.dump());
  auto source = ModelSource::Open(folder.path());
  const absl::Status status =
      source.ok() ? Model::Load(**source, {.executor = &executor_}).status() : source.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(::testing::HasSubstr("_proj.weight"), ::testing::HasSubstr("64"),
                               ::testing::HasSubstr("80")));
}

}  // namespace
}  // namespace baton
