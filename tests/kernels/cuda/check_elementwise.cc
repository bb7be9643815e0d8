// Element-wise ops and embedding look-up. All but RmsNorm give the CPU's bits.
#include <algorithm>

#include "kernels/convert_math.h"
#include "kernels/elementwise.h"
#include "tests/kernels/cuda/check.h"

namespace baton::check {
namespace {

struct Sizes {
  std::int64_t n, d, pad;  // pad: floats between rows beyond d
};
// With and without what vector loads need; more rows than blocks of one launch hold threads.
constexpr Sizes kSizes[] = {{0, 64, 0},  {1, 1, 0},    {3, 577, 0}, {5, 576, 4},
                            {4, 128, 3}, {2, 5000, 0}, {300, 12, 0}};

std::string Name(const Sizes& s) {
  return std::to_string(s.n) + " x " + std::to_string(s.d) + " + " + std::to_string(s.pad);
}
std::size_t Floats(const Sizes& s) { return static_cast<std::size_t>(s.n * (s.d + s.pad)); }

void CheckRmsNorm(Report& report) {
  SerialExecutor serial;
  for (const Sizes& s : kSizes) {
    for (bool with_gamma : {false, true}) {
      report.Case(Name(s));
      const std::int64_t ld = s.d + s.pad;
      const std::vector<float> x = Normal(Floats(s), 1, 3.0f);
      const std::vector<float> gamma = Normal(static_cast<std::size_t>(s.d), 2);
      std::vector<float> want(x.size(), 77.0f);
      baton::RmsNorm(x.data(), ld, with_gamma ? gamma.data() : nullptr, 1e-5f, s.n, s.d,
                     want.data(), ld, serial);
      const DeviceArray<float> dx(x), dg(gamma), y(std::vector<float>(x.size(), 77.0f));
      report.Ok(cuda::RmsNorm(dx.get(), ld, with_gamma ? dg.get() : nullptr, 1e-5f, s.n, s.d,
                              y.get(), ld, nullptr));
      const std::vector<float> got = y.ToHost();
      for (std::size_t i = 0; i < got.size(); ++i) {
        report.Near("y", i, got[i], want[i], 4e-6 * std::fabs(want[i]));
      }
    }
  }
}

void CheckRope(Report& report) {
  SerialExecutor serial;
  for (int head_dim : {2, 64, 80, 256}) {
    report.Case("head_dim " + std::to_string(head_dim));
    const std::int64_t n = 9, heads = 3, ld = heads * head_dim + 3;
    std::vector<float> x = Normal(static_cast<std::size_t>(n * ld), 1), freq;
    for (int i = 0; i < head_dim / 2; ++i) freq.push_back(std::pow(5e5f, -2.0f * i / head_dim));
    const std::vector<std::int32_t> positions = {0, 1, 2, 77, 4096, 131071, 5, 1000000, 3};
    const DeviceArray<float> dx(x), df(freq);
    const DeviceArray<std::int32_t> dp(positions);
    report.Ok(cuda::Rope(dx.get(), ld, dp.get(), df.get(), 1.1f, heads, head_dim, n, nullptr));
    baton::Rope(x.data(), ld, positions.data(), freq.data(), 1.1f, heads, head_dim, n, serial);
    report.Same("x", dx.ToHost(), x);
  }
}

void CheckSiluMul(Report& report) {
  SerialExecutor serial;
  for (const Sizes& s : kSizes) {
    report.Case(Name(s));
    const std::int64_t ld = s.d + s.pad;
    std::vector<float> gate = Normal(Floats(s), 1, 8.0f);
    if (gate.size() > 2) gate[1] = -200.0f;
    const std::vector<float> up = Normal(Floats(s), 2);
    std::vector<float> want(gate.size(), 77.0f);
    baton::SiluMul(gate.data(), ld, up.data(), ld, s.n, s.d, want.data(), ld, serial);
    const DeviceArray<float> dg(gate), du(up), y(std::vector<float>(gate.size(), 77.0f));
    report.Ok(cuda::SiluMul(dg.get(), ld, du.get(), ld, s.n, s.d, y.get(), ld, nullptr));
    report.Same("y", y.ToHost(), want);
  }
}

void CheckAddRows(Report& report) {
  SerialExecutor serial;
  for (const Sizes& s : kSizes) {
    report.Case(Name(s));
    const std::int64_t ld = s.d + s.pad;
    std::vector<float> x = Normal(Floats(s), 1);
    const std::vector<float> y = Normal(Floats(s), 2);
    const DeviceArray<float> dx(x), dy(y);
    report.Ok(cuda::AddRows(dx.get(), ld, dy.get(), ld, s.n, s.d, nullptr));
    baton::AddRows(x.data(), ld, y.data(), ld, s.n, s.d, serial);
    report.Same("x", dx.ToHost(), x);
  }
}

void CheckCopyFloats(Report& report) {
  for (std::size_t n : {0, 1, 3, 4, 1023, 100000}) {
    report.Case(std::to_string(n) + " floats");
    const std::vector<float> x = Normal(n, 1);
    const DeviceArray<float> dx(x), dy(std::vector<float>(n, 77.0f));
    report.Ok(cuda::CopyFloats(dx.get(), static_cast<std::int64_t>(n), dy.get(), nullptr));
    report.Same("y", dy.ToHost(), x);
  }
}

template <DType D>
void CheckEmbedding(Report& report) {
  for (std::int64_t d : {1, 64, 67, 576}) {
    report.Case("d " + std::to_string(d));
    const std::int64_t vocab = 50, ld = d + (d == 64 ? 0 : 3);
    const std::vector<float> table = Normal(static_cast<std::size_t>(vocab * d), 1);
    std::vector<std::uint8_t> bytes(table.size() * DTypeSize(D));
    std::vector<float> rounded(table.size());
    for (std::size_t i = 0; i < table.size(); ++i) {
      const std::uint16_t h = D == DType::kBF16 ? FloatToBf16(table[i]) : FloatToHalf(table[i]);
      if (D == DType::kF32) {
        std::memcpy(&bytes[i * 4], &table[i], 4);
        rounded[i] = table[i];
      } else {
        std::memcpy(&bytes[i * 2], &h, 2);
        rounded[i] = D == DType::kBF16 ? Bf16ToFloat(h) : HalfToFloat(h);
      }
    }
    const std::vector<std::int32_t> ids = {0, 49, 7, 7, -1, 50, INT32_MAX, INT32_MIN};
    std::vector<float> want(ids.size() * static_cast<std::size_t>(ld), 77.0f);
    for (std::size_t r = 0; r < ids.size(); ++r) {
      float* row = &want[r * static_cast<std::size_t>(ld)];
      const bool known = ids[r] >= 0 && ids[r] < vocab;
      if (known) std::copy_n(&rounded[static_cast<std::size_t>(ids[r] * d)], d, row);
      if (!known) std::fill_n(row, d, BitsFloat(0x7fc00000u));
    }
    const DeviceArray<std::uint8_t> dt(bytes);
    const DeviceArray<std::int32_t> di(ids);
    const DeviceArray<float> y(std::vector<float>(want.size(), 77.0f));
    report.Ok(cuda::EmbeddingRows(dt.get(), D, vocab, d, di.get(),
                                  static_cast<std::int64_t>(ids.size()), y.get(), ld, nullptr));
    report.Same("y", y.ToHost(), want);
  }
}

}  // namespace

std::vector<Check> ElementwiseChecks() {
  return {{"RmsNorm", "fp32", CheckRmsNorm},
          {"Rope", "fp32", CheckRope},
          {"SiluMul", "fp32", CheckSiluMul},
          {"AddRows", "fp32", CheckAddRows},
          {"CopyFloats", "fp32", CheckCopyFloats},
          {"EmbeddingRows", "fp32", CheckEmbedding<DType::kF32>},
          {"EmbeddingRows", "bf16", CheckEmbedding<DType::kBF16>},
          {"EmbeddingRows", "fp16", CheckEmbedding<DType::kF16>}};
}

}  // namespace baton::check
