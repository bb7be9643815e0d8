// The kernels against ATen's own ops on the same tensors.
#include "kernels/torch/ops.h"

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/torch/device.h"

namespace baton::torch_ops {
namespace {

double MaxDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

at::Tensor Arange(std::int64_t begin, std::int64_t end) {
  return at::arange(begin, end, at::TensorOptions().dtype(at::kInt));
}

class TorchOps : public testing::Test {
 protected:
  TorchOps() { at::manual_seed(1); }
  std::unique_ptr<Executor> pool_ = MakeThreadPool(2);
};

TEST_F(TorchOps, RmsNormEqualsATen) {
  const at::Tensor x = at::randn({3, 5, 577}) * 4, gamma = at::randn({577});
  EXPECT_LT(MaxDifference(RmsNorm(x, gamma, 1e-5, *pool_), at::rms_norm(x, {577}, gamma, 1e-5)),
            1e-5);
  EXPECT_LT(MaxDifference(RmsNorm(x, {}, 1e-5, *pool_), at::rms_norm(x, {577}, {}, 1e-5)), 1e-5);
  // A view with strides gives the same as its copy.
  const at::Tensor view = x.transpose(0, 1);
  EXPECT_TRUE(at::equal(RmsNorm(view, gamma, 1e-5, *pool_),
                        RmsNorm(view.contiguous(), gamma, 1e-5, *pool_)));
}

TEST_F(TorchOps, RopeEqualsTheRotateHalfFormula) {
  const at::Tensor x = at::randn({7, 3, 64});
  const at::Tensor inv_freq = at::pow(10000.0, -at::arange(0, 64, 2) / 64.0).to(at::kFloat);
  const at::Tensor positions = Arange(1000, 1007);
  const at::Tensor angle = at::outer(positions.to(at::kFloat), inv_freq).to(at::kDouble);
  const at::Tensor cos = at::cat({angle, angle}, -1).cos().unsqueeze(1);
  const at::Tensor sin = at::cat({angle, angle}, -1).sin().unsqueeze(1);
  const at::Tensor d = x.to(at::kDouble);
  const at::Tensor half = at::cat({-d.slice(-1, 32), d.slice(-1, 0, 32)}, -1);
  const at::Tensor before = x.clone();
  EXPECT_LT(MaxDifference(Rope(x, positions, inv_freq, 1.0, *pool_), d * cos + half * sin), 2e-6);
  EXPECT_TRUE(at::equal(x, before));
}

TEST_F(TorchOps, SiluMulAndAddEqualATen) {
  const at::Tensor a = at::randn({3, 5, 577}) * 4, b = at::randn({3, 5, 577});
  // Two roundings and an exp of 1 ulp.
  const at::Tensor want = at::silu(a.to(at::kDouble)) * b.to(at::kDouble);
  EXPECT_LT(((SiluMul(a, b, *pool_) - want).abs() / (want.abs() + 1e-30)).max().item<double>(),
            2e-6);
  EXPECT_TRUE(at::equal(Add(a, b, *pool_), a + b));
  EXPECT_EQ(Add(at::ones({}), at::ones({}), *pool_).item<float>(), 2.0f);
  EXPECT_EQ(SiluMul(at::empty({0, 4}), at::empty({0, 4}), *pool_).sizes(), at::IntArrayRef({0, 4}));
  EXPECT_EQ(Add(at::empty({4, 0}), at::empty({4, 0}), *pool_).sizes(), at::IntArrayRef({4, 0}));
}

TEST_F(TorchOps, EmbeddingEqualsATen) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor table = at::randn({20, 33}).to(type);
    const at::Tensor ids = at::tensor({19, 0, 7, 7}, at::kInt);
    EXPECT_TRUE(at::equal(Embedding(table, ids), at::embedding(table, ids).to(at::kFloat)));
  }
  const at::Tensor outside = Embedding(at::ones({2, 3}), at::tensor({2, -1, 1}, at::kInt));
  EXPECT_TRUE(outside.slice(0, 0, 2).isnan().all().item<bool>());
  EXPECT_TRUE(at::equal(outside[2], at::ones({3})));
}

TEST_F(TorchOps, ArgMaxAndSurprisalEqualATen) {
  at::Tensor logits = at::randn({6, 5000}) * 4;
  logits[1].fill_(2.0f);
  EXPECT_TRUE(at::equal(ArgMax(logits).slice(0, 2), logits.argmax(-1).to(at::kInt).slice(0, 2)));
  EXPECT_EQ(ArgMax(logits)[1].item<int>(), 0);
  EXPECT_EQ(ArgMax(at::full({1, 3}, NAN))[0].item<int>(), -1);
  const at::Tensor targets = at::tensor({0, 1, 4999, 77, 5000, -1}, at::kInt);
  const auto got = Surprisal(logits, targets);
  const at::Tensor lse = logits.to(at::kDouble).logsumexp(-1);
  EXPECT_LT(MaxDifference(got[1], lse), 4e-6);
  const at::Tensor want =
      lse.slice(0, 0, 4) -
      logits.slice(0, 0, 4).gather(1, targets.slice(0, 0, 4).to(at::kLong).unsqueeze(1)).squeeze(1);
  EXPECT_LT(MaxDifference(got[0].slice(0, 0, 4), want), 8e-6);
  EXPECT_TRUE(got[0].slice(0, 4).isnan().all().item<bool>());
}

// The codes themselves are checked against the gguf package in tests/kernels/codes_test.cc.
TEST_F(TorchOps, CodesComeBackWithinHalfAStep) {
  const at::Tensor w = at::randn({12, 96}), x = at::randn({11, 96});
  for (const CodeType type : {CodeType::kInt8, CodeType::kInt4}) {
    const auto m = QuantizeRows(w, type, *pool_);
    const at::Tensor back = DequantizeRows(m[0], m[1], type, *pool_);
    const at::Tensor blocks = w.reshape({12, 3, 32});
    const at::Tensor step = type == CodeType::kInt8 ? blocks.abs().amax(-1) / 127
                                                    : (blocks.amax(-1) - blocks.amin(-1)) / 15;
    // Rounding the scale and the minimum to fp16 adds 2^-11 of at most 10.
    const at::Tensor error = (back - w).abs().reshape({12, 3, 32}).amax(-1);
    EXPECT_TRUE((error <= step * 0.5 + 10.0 / 2048).all().item<bool>());
    const at::Tensor ids = at::tensor({11, 3, 12}, at::kInt);
    const at::Tensor rows = EmbeddingCodes(m[0], m[1], type, ids, *pool_);
    EXPECT_TRUE(at::equal(rows[0], back[11]));
    EXPECT_TRUE(at::equal(rows[1], back[3]));
    EXPECT_TRUE(rows[2].isnan().all().item<bool>());
    EXPECT_LT(MaxDifference(LinearCodes(x, m[0], m[1], type, *pool_), at::linear(x, back)), 1e-4);
  }
}

TEST_F(TorchOps, LinearEqualsATen) {
  const at::Tensor x = at::randn({2, 9, 130}), w = at::randn({77, 130}), bias = at::randn({77});
  const PackedMatrix packed = Pack(w, DType::kF32, *pool_);
  EXPECT_LT(MaxDifference(Linear(x, packed, bias, *pool_), at::linear(x, w, bias)), 1e-4);
  EXPECT_LT(MaxDifference(Linear(x, packed, {}, *pool_), at::linear(x, w)), 1e-4);
  for (const auto& [dtype, type] :
       {std::pair{DType::kBF16, at::kBFloat16}, std::pair{DType::kF16, at::kHalf}}) {
    const at::Tensor rounded = w.to(type);
    const at::Tensor want = at::linear(x, rounded.to(at::kFloat));
    EXPECT_LT(MaxDifference(Linear(x, Pack(w, dtype, *pool_), {}, *pool_), want), 1e-4);
    EXPECT_LT(MaxDifference(Linear(x, Pack(rounded, dtype, *pool_), {}, *pool_), want), 1e-4);
  }
}

// [n, heads, dim] -> ATen's [1, heads, n, dim].
at::Tensor HeadsFirst(const at::Tensor& t) { return t.transpose(0, 1).unsqueeze(0); }

TEST_F(TorchOps, AttentionEqualsScaledDotProductAttention) {
  for (std::int64_t head_dim : {64, 80, 128}) {
    const at::Tensor q = at::randn({50, 6, head_dim});
    const at::Tensor k = at::randn({150, 2, head_dim}), v = at::randn({150, 2, head_dim});
    const auto pages = [&](std::int64_t b, std::int64_t e) {
      return PagedKv::Create(k.slice(0, b, e), v.slice(0, b, e), Arange(b, e), {}, DType::kF32);
    };
    const at::Tensor q_positions = Arange(100, 150);
    const at::Tensor seen = Arange(0, 150).unsqueeze(0) <= q_positions.unsqueeze(1);
    const at::Tensor want =
        at::scaled_dot_product_attention(HeadsFirst(q), HeadsFirst(k).repeat_interleave(3, 1),
                                         HeadsFirst(v).repeat_interleave(3, 1), seen);
    const auto whole = Attention(q, q_positions, {pages(0, 150)}, {}, *pool_);
    EXPECT_LT(MaxDifference(HeadsFirst(whole[0]), want), 5e-6);
    const auto parts = Attention(q, q_positions, {pages(0, 37), pages(37, 150)}, {}, *pool_);
    EXPECT_LT(MaxDifference(HeadsFirst(parts[0]), want), 5e-6);
    EXPECT_LT(MaxDifference(parts[1], whole[1]), 5e-6);
  }
}

TEST_F(TorchOps, KeyMassEqualsTheColumnSums) {
  const at::Tensor q = at::randn({40, 4, 64});
  const at::Tensor k = at::randn({90, 2, 64}), v = at::randn({90, 2, 64}), bias = at::randn({90});
  const at::Tensor q_positions = Arange(50, 90);
  const std::vector<PagedKv> kv = {PagedKv::Create(k, v, Arange(0, 90), bias, DType::kF32)};
  const auto result = Attention(q, q_positions, kv, {}, *pool_);
  const at::Tensor hidden = Arange(0, 90).unsqueeze(0) > q_positions.unsqueeze(1);
  const at::Tensor scores =
      at::matmul(HeadsFirst(q), HeadsFirst(k).repeat_interleave(2, 1).transpose(-1, -2)) / 8.0 +
      bias;
  const at::Tensor weights = scores.masked_fill(hidden, -INFINITY).to(at::kDouble).softmax(-1);
  const at::Tensor want = weights.sum(2).reshape({2, 2, 90}).sum(1);
  EXPECT_LT(MaxDifference(KeyMass(q, q_positions, result[1], kv, {}, *pool_), want), 2e-4);
}

// The window reaches both kernels, and parts of a cache are one.
TEST_F(TorchOps, SlidingWindowEqualsAMask) {
  const at::Tensor q = at::randn({40, 4, 64});
  const at::Tensor k = at::randn({190, 2, 64}), v = at::randn({190, 2, 64});
  const at::Tensor q_positions = Arange(150, 190);
  const at::Tensor ahead = q_positions.unsqueeze(1) - Arange(0, 190).unsqueeze(0);
  const auto pages = [&](std::int64_t b, std::int64_t e) {
    return PagedKv::Create(k.slice(0, b, e), v.slice(0, b, e), Arange(b, e), {}, DType::kF32);
  };
  for (const int window : {1, 16, 37}) {
    const at::Tensor hidden = (ahead < 0).logical_or(ahead >= window);
    const at::Tensor scores =
        at::matmul(HeadsFirst(q), HeadsFirst(k).repeat_interleave(2, 1).transpose(-1, -2)) / 8.0;
    const at::Tensor weights = scores.masked_fill(hidden, -INFINITY).to(at::kDouble).softmax(-1);
    const at::Tensor want =
        at::matmul(weights, HeadsFirst(v).repeat_interleave(2, 1).to(at::kDouble));
    const std::vector<PagedKv> kv = {pages(0, 129), pages(129, 190)};
    const auto result = Attention(q, q_positions, kv, {.window = window}, *pool_);
    EXPECT_LT(MaxDifference(HeadsFirst(result[0]), want), 5e-6) << window;
    EXPECT_LT(MaxDifference(KeyMass(q, q_positions, result[1], kv, {.window = window}, *pool_),
                            weights.sum(2).reshape({2, 2, 190}).sum(1)),
              2e-4)
        << window;
  }
}

TEST_F(TorchOps, WrongArgumentsAreNamed) {
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "no error";
  };
  const at::Tensor x = at::randn({2, 8});
  EXPECT_THAT(message([&] { RmsNorm(x.to(at::kDouble), {}, 1e-5, *pool_); }),
              testing::HasSubstr("rms_norm: x must be Float"));
  EXPECT_THAT(message([&] { RmsNorm(x, at::ones({7}), 1e-5, *pool_); }),
              testing::HasSubstr("gamma must have shape [8], has [7]"));
  EXPECT_THAT(message([&] { RmsNorm(at::Tensor(), {}, 1e-5, *pool_); }),
              testing::HasSubstr("x is undefined"));
  EXPECT_THAT(message([&] {
                Linear(x, Pack(at::ones({3, 9}), DType::kF32, *pool_), {}, *pool_);
              }),
              testing::HasSubstr("x must end in 9 features"));
  EXPECT_THAT(message([&] {
                const at::Tensor k = at::ones({1, 1, 12});
                PagedKv::Create(k, k, Arange(0, 1), {}, DType::kF32);
              }),
              testing::HasSubstr("head_dim must be a multiple of 8"));
  EXPECT_THAT(message([&] {
                const at::Tensor k = at::ones({1, 2, 8});
                const auto kv = PagedKv::Create(k, k, Arange(0, 1), {}, DType::kF32);
                Attention(at::ones({1, 3, 8}), Arange(0, 1), {kv}, {}, *pool_);
              }),
              testing::HasSubstr("2 kv heads do not divide 3 query heads"));
  EXPECT_THAT(message([&] {
                Attention(at::ones({1, 2, 8}), Arange(0, 1), {}, {.window = -1}, *pool_);
              }),
              testing::HasSubstr("window must be at least 0"));
}

TEST_F(TorchOps, EmptyInputs) {
  EXPECT_EQ(RmsNorm(at::empty({0, 8}), {}, 1e-5, *pool_).size(0), 0);
  const PackedMatrix w = Pack(at::ones({3, 4}), DType::kF32, *pool_);
  EXPECT_EQ(Linear(at::empty({0, 4}), w, {}, *pool_).sizes(), at::IntArrayRef({0, 3}));
  const auto none = Attention(at::ones({2, 2, 8}), Arange(0, 2), {}, {}, *pool_);
  EXPECT_EQ(none[0].abs().max().item<float>(), 0.0f);
  EXPECT_TRUE(at::isinf(none[1]).all().item<bool>());
}

TEST_F(TorchOps, OtherDevicesAreRefused) {
  const at::Tensor nowhere = at::empty({2, 8}, at::TensorOptions().device(at::kMeta));
  EXPECT_THROW(RmsNorm(nowhere, {}, 1e-5, *pool_), c10::Error);
  const at::Tensor k = at::empty({1, 2, 8}, at::TensorOptions().device(at::kMeta));
  EXPECT_THROW(Rope(k, Arange(0, 1), at::ones({4}), 1.0, *pool_), c10::Error);
  EXPECT_THROW(PagedKv::Create(k, k, Arange(0, 1), {}, DType::kF32), c10::Error);
  EXPECT_THROW(Attention(k, Arange(0, 1), {}, {}, *pool_), c10::Error);
}

// The same calls on CUDA tensors take the device kernels. Needs a CUDA device; skipped only where
// there is none.
class TorchOpsCuda : public TorchOps {
 protected:
  void SetUp() override {
    if (CudaDevices() == 0) GTEST_SKIP() << "needs a CUDA device and CUDA kernels";
    // Registers Torch's own CUDA ops, which only a process with a GPU needs.
    ASSERT_NE(dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  }
  static at::Tensor Gpu(const at::Tensor& t) { return t.to(at::kCUDA); }
  static at::Tensor Cpu(const at::Tensor& t) { return t.to(at::kCPU); }
};

TEST_F(TorchOpsCuda, ElementwiseEqualsTheCpu) {
  const at::Tensor x = at::randn({3, 5, 577}), gamma = at::randn({577});
  const at::Tensor want = RmsNorm(x, gamma, 1e-5, *pool_);
  EXPECT_LT(MaxDifference(Cpu(RmsNorm(Gpu(x), Gpu(gamma), 1e-5, *pool_)), want), 4e-5);
  const at::Tensor y = at::randn({7, 3, 64}), freq = at::rand({32});
  EXPECT_TRUE(at::equal(Cpu(Rope(Gpu(y), Gpu(Arange(100, 107)), Gpu(freq), 1.0, *pool_)),
                        Rope(y, Arange(100, 107), freq, 1.0, *pool_)));
}

TEST_F(TorchOpsCuda, RowsOfLogitsAndTablesEqualTheCpu) {
  const at::Tensor a = at::randn({5, 577}), b = at::randn({5, 577});
  EXPECT_TRUE(at::equal(Cpu(SiluMul(Gpu(a), Gpu(b), *pool_)), SiluMul(a, b, *pool_)));
  EXPECT_TRUE(at::equal(Cpu(Add(Gpu(a), Gpu(b), *pool_)), Add(a, b, *pool_)));
  const at::Tensor ids = at::tensor({4, 0, 2}, at::kInt);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    EXPECT_TRUE(at::equal(Cpu(Embedding(Gpu(a.to(type)), Gpu(ids))), Embedding(a.to(type), ids)));
  }
  EXPECT_TRUE(at::equal(Cpu(ArgMax(Gpu(a))), ArgMax(a)));
  const at::Tensor targets = at::tensor({0, 576, 3, 4, 5}, at::kInt);
  const auto got = Surprisal(Gpu(a), Gpu(targets)), want = Surprisal(a, targets);
  EXPECT_LT(MaxDifference(Cpu(got[0]), want[0]), 1e-5);
  EXPECT_LT(MaxDifference(Cpu(got[1]), want[1]), 1e-5);
}

TEST_F(TorchOpsCuda, CodesEqualTheCpu) {
  const at::Tensor w = at::randn({12, 96}), x = at::randn({11, 96});
  const at::Tensor ids = at::tensor({11, 3, 7}, at::kInt);
  for (const CodeType type : {CodeType::kInt8, CodeType::kInt4}) {
    const auto want = QuantizeRows(w, type, *pool_), got = QuantizeRows(Gpu(w), type, *pool_);
    EXPECT_TRUE(at::equal(Cpu(got[0]), want[0]));
    EXPECT_TRUE(at::equal(Cpu(got[1]), want[1]));
    EXPECT_TRUE(at::equal(Cpu(DequantizeRows(got[0], got[1], type, *pool_)),
                          DequantizeRows(want[0], want[1], type, *pool_)));
    EXPECT_TRUE(at::equal(Cpu(EmbeddingCodes(got[0], got[1], type, Gpu(ids), *pool_)),
                          EmbeddingCodes(want[0], want[1], type, ids, *pool_)));
    EXPECT_LT(MaxDifference(Cpu(LinearCodes(Gpu(x), got[0], got[1], type, *pool_)),
                            LinearCodes(x, want[0], want[1], type, *pool_)),
              1e-4);
  }
}

TEST_F(TorchOpsCuda, AttentionAndKeyMassEqualTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const std::int64_t n : {1, 50}) {
      const at::Tensor q = at::randn({n, 6, 64}), q_positions = Arange(150 - n, 150);
      const at::Tensor k = at::randn({150, 2, 64}), v = at::randn({150, 2, 64}),
                       bias = at::randn({150}), rows = Arange(0, 150);
      const std::vector<PagedKv> cpu = {PagedKv::Create(k, v, rows, bias, dtype)};
      const std::vector<PagedKv> gpu = {
          PagedKv::Create(Gpu(k), Gpu(v), Gpu(rows), Gpu(bias), dtype)};
      const auto want = Attention(q, q_positions, cpu, {}, *pool_);
      const auto got = Attention(Gpu(q), Gpu(q_positions), gpu, {}, *pool_);
      EXPECT_LT(MaxDifference(Cpu(got[0]), want[0]), 4e-6 * v.abs().max().item<double>());
      EXPECT_LT(MaxDifference(Cpu(got[1]), want[1]), 4e-5);
      EXPECT_LT(MaxDifference(Cpu(KeyMass(Gpu(q), Gpu(q_positions), got[1], gpu, {}, *pool_)),
                              KeyMass(q, q_positions, want[1], cpu, {}, *pool_)),
                4e-4);
    }
  }
}

}  // namespace
}  // namespace baton::torch_ops
