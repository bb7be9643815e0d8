// Codes (quantise, dequantise, product, embedding) and reductions over logits.
#include <algorithm>

#include "kernels/codes.h"
#include "kernels/convert_math.h"
#include "kernels/elementwise.h"
#include "kernels/sampling.h"
#include "tests/kernels/cuda/check.h"

namespace baton::check {
namespace {

constexpr double kUlp = 1.0 / (1 << 24);

struct Codes {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint16_t> scales;
};

Codes Room(CodeType type, std::int64_t values) {
  const std::size_t blocks = static_cast<std::size_t>(values / kCodeBlock);
  return {
      std::vector<std::uint8_t>(blocks * static_cast<std::size_t>(CodeBlockBytes(type)), 0xee),
      std::vector<std::uint16_t>(blocks * static_cast<std::size_t>(CodeBlockScales(type)), 0xeeee)};
}

Codes Quantized(CodeType type, const std::vector<float>& x, std::int64_t n, std::int64_t d,
                std::int64_t ld) {
  SerialExecutor serial;
  Codes c = Room(type, n * d);
  baton::QuantizeRows(x.data(), ld, n, d, type, c.codes.data(), c.scales.data(), serial);
  return c;
}

template <CodeType T>
void CheckQuantize(Report& report) {
  for (std::int64_t pad : {0, 4, 3}) {
    for (std::int64_t d : {32, 96, 4096}) {
      report.Case("d " + std::to_string(d) + " + " + std::to_string(pad));
      const std::int64_t n = 5, ld = d + pad;
      std::vector<float> x = Normal(static_cast<std::size_t>(n * ld), 1, 2.0f);
      std::fill_n(x.begin(), 32, 0.0f);             // a block of zeros
      std::fill_n(x.begin() + ld, 32, -3.25f);      // of equals
      std::fill_n(x.begin() + 2 * ld, 32, 1e-41f);  // a scale whose inverse overflows
      x[static_cast<std::size_t>(3 * ld)] = 30000.0f;
      const Codes want = Quantized(T, x, n, d, ld), room = Room(T, n * d);
      const DeviceArray<float> dx(x);
      const DeviceArray<std::uint8_t> codes(room.codes);
      const DeviceArray<std::uint16_t> scales(room.scales);
      report.Ok(cuda::QuantizeRows(dx.get(), ld, n, d, T, codes.get(), scales.get(), nullptr));
      report.Same("codes", codes.ToHost(), want.codes);
      report.Same("scales", scales.ToHost(), want.scales);
    }
  }
}

template <CodeType T>
void CheckDequantize(Report& report) {
  SerialExecutor serial;
  for (std::int64_t pad : {0, 3}) {
    for (std::int64_t d : {32, 4096}) {
      report.Case("d " + std::to_string(d) + " + " + std::to_string(pad));
      const std::int64_t n = 3, ld = d + pad;
      const Codes c = Quantized(T, Normal(static_cast<std::size_t>(n * d), 1), n, d, d);
      std::vector<float> want(static_cast<std::size_t>(n * ld), 77.0f);
      baton::DequantizeRows(c.codes.data(), c.scales.data(), n, d, T, want.data(), ld, serial);
      const DeviceArray<std::uint8_t> codes(c.codes);
      const DeviceArray<std::uint16_t> scales(c.scales);
      const DeviceArray<float> y(std::vector<float>(want.size(), 77.0f));
      report.Ok(cuda::DequantizeRows(codes.get(), scales.get(), n, d, T, y.get(), ld, nullptr));
      report.Same("y", y.ToHost(), want);
    }
  }
}

template <CodeType T>
void CheckEmbeddingCodes(Report& report) {
  SerialExecutor serial;
  for (std::int64_t pad : {0, 1}) {
    report.Case("pad " + std::to_string(pad));
    const std::int64_t vocab = 20, d = 96, ld = d + pad;
    const Codes c = Quantized(T, Normal(static_cast<std::size_t>(vocab * d), 1), vocab, d, d);
    std::vector<float> table(static_cast<std::size_t>(vocab * d));
    baton::DequantizeRows(c.codes.data(), c.scales.data(), vocab, d, T, table.data(), d, serial);
    const std::vector<std::int32_t> ids = {19, 0, 20, -5, 7};
    std::vector<float> want(ids.size() * static_cast<std::size_t>(ld), 77.0f);
    for (std::size_t r = 0; r < ids.size(); ++r) {
      float* row = &want[r * static_cast<std::size_t>(ld)];
      const bool known = ids[r] >= 0 && ids[r] < vocab;
      if (known) std::copy_n(&table[static_cast<std::size_t>(ids[r] * d)], d, row);
      if (!known) std::fill_n(row, d, BitsFloat(0x7fc00000u));
    }
    const DeviceArray<std::uint8_t> codes(c.codes);
    const DeviceArray<std::uint16_t> scales(c.scales);
    const DeviceArray<std::int32_t> di(ids);
    const DeviceArray<float> y(std::vector<float>(want.size(), 77.0f));
    report.Ok(cuda::EmbeddingCodes(codes.get(), scales.get(), T, vocab, d, di.get(),
                                   static_cast<std::int64_t>(ids.size()), y.get(), ld, nullptr));
    report.Same("y", y.ToHost(), want);
  }
}

// Sum of |d q x| + |m x| over the inner dimension: int4's two sums may cancel.
double ProductScale(CodeType type, const Codes& c, const float* x, std::int64_t row,
                    std::int64_t cols) {
  double scale = 0;
  for (std::int64_t i = 0; i < cols; ++i) {
    const std::size_t b = static_cast<std::size_t>(row * cols + i) / kCodeBlock;
    const std::size_t at = static_cast<std::size_t>(i % kCodeBlock);
    double w;
    if (type == CodeType::kInt8) {
      w = std::fabs(HalfToFloat(c.scales[b]) * static_cast<std::int8_t>(c.codes[b * 32 + at]));
    } else {
      const int q = at < 16 ? c.codes[b * 16 + at] & 15 : c.codes[b * 16 + at - 16] >> 4;
      w = std::fabs(HalfToFloat(c.scales[2 * b]) * static_cast<float>(q)) +
          std::fabs(HalfToFloat(c.scales[2 * b + 1]));
    }
    scale += w * std::fabs(x[i]);
  }
  return scale;
}

template <CodeType T>
void CheckProduct(Report& report) {
  SerialExecutor serial;
  for (std::int64_t cols : {32, 96, 1056, 4096}) {
    for (std::int64_t n : {0, 1, 2, 3, 4, 7, 8}) {
      const std::int64_t rows = 37, ldx = cols + 4, ldy = rows + 1;
      report.Case(std::to_string(n) + " rows, " + std::to_string(cols) + " columns");
      const Codes c =
          Quantized(T, Normal(static_cast<std::size_t>(rows * cols), 1), rows, cols, cols);
      const std::vector<float> x = Normal(static_cast<std::size_t>(n * ldx), 2);
      std::vector<float> want(static_cast<std::size_t>(n * ldy), 77.0f);
      baton::MultiplyCodes(c.codes.data(), c.scales.data(), T, rows, cols, x.data(), ldx, n,
                           want.data(), ldy, serial);
      const DeviceArray<std::uint8_t> codes(c.codes);
      const DeviceArray<std::uint16_t> scales(c.scales);
      const DeviceArray<float> dx(x), y(std::vector<float>(want.size(), 77.0f));
      report.Ok(cuda::MultiplyCodes(codes.get(), scales.get(), T, rows, cols, dx.get(), ldx, n,
                                    y.get(), ldy, nullptr));
      const std::vector<float> got = y.ToHost();
      // The CPU's sequential sum, and the device's: 16 in a row, a lane's pieces, five steps.
      const double k = static_cast<double>(cols);
      const double tolerance = kUlp * ((k / 4 + 4) + (16 + k / 512 + 8));
      for (std::int64_t r = 0; r < n; ++r) {
        for (std::int64_t o = 0; o < ldy; ++o) {
          const std::size_t i = static_cast<std::size_t>(r * ldy + o);
          report.Near(
              "y", i, got[i], want[i],
              o < rows
                  ? tolerance * ProductScale(T, c, &x[static_cast<std::size_t>(r * ldx)], o, cols)
                  : 0.0);
        }
      }
    }
  }
}

void CheckArgMax(Report& report) {
  for (std::int64_t d : {0, 1, 31, 257, 5000, 50000}) {
    for (int sm_count : {1, 64}) {
      report.Case("d " + std::to_string(d));
      const std::int64_t n = 7, ld = d + 1;
      std::vector<float> x = Normal(static_cast<std::size_t>(n * ld), static_cast<unsigned>(d) + 1);
      const auto at = [&](std::int64_t r, std::int64_t i) -> float& {
        return x[static_cast<std::size_t>(r * ld + i)];
      };
      for (std::int64_t i = 0; i < d; ++i) {
        at(1, i) = NAN;
        at(2, i) = i % 3 == 0 ? NAN : -INFINITY;
        at(3, i) = 2.0f;
      }
      if (d > 0) {
        at(4, d - 1) = at(4, d / 2) = 100.0f;
        at(5, 0) = NAN;
        at(6, d - 1) = INFINITY;
      }
      std::vector<std::int32_t> want;
      for (std::int64_t r = 0; r < n; ++r) {
        want.push_back(static_cast<std::int32_t>(baton::ArgMax(x.data() + r * ld, d)));
      }
      const ReducePlan plan = PlanReduce(n, d, sm_count);
      const DeviceArray<float> dx(x), workspace(plan.workspace_floats);
      const DeviceArray<std::int32_t> tokens(std::vector<std::int32_t>(want.size(), 77));
      report.Ok(cuda::ArgMax(dx.get(), ld, n, d, plan, workspace.get(), tokens.get(), nullptr));
      report.Same("token", tokens.ToHost(), want);
    }
  }
}

// Two functions of one computation: in chunks of columns against LogSumExp of the whole row.
void CheckSurprisal(Report& report) {
  for (std::int64_t vocab : {1, 33, 5000, 49152}) {
    for (std::int64_t chunk : {vocab, (vocab + 2) / 3}) {
      report.Case("vocabulary of " + std::to_string(vocab) + " by " + std::to_string(chunk));
      const std::int64_t n = 5;
      std::vector<float> x = Normal(static_cast<std::size_t>(n * vocab), 1, 4.0f);
      for (std::int64_t i = 0; i + 1 < vocab; ++i)
        x[static_cast<std::size_t>(vocab + i)] = -INFINITY;
      std::vector<std::int32_t> targets;
      for (std::int64_t r = 0; r < n; ++r) {
        targets.push_back(static_cast<std::int32_t>(r == 1 ? vocab - 1 : r * 7919 % vocab));
      }
      const DeviceArray<std::int32_t> dt(targets);
      const DeviceArray<float> state(static_cast<std::size_t>(3 * n)),
          out(static_cast<std::size_t>(n)), lse(static_cast<std::size_t>(n));
      for (std::int64_t first = 0; first < vocab; first += chunk) {
        const std::int64_t cols = std::min(chunk, vocab - first), ld = cols + 3;
        std::vector<float> part(static_cast<std::size_t>(n * ld), NAN);
        for (std::int64_t r = 0; r < n; ++r) {
          std::copy_n(&x[static_cast<std::size_t>(r * vocab + first)], cols,
                      &part[static_cast<std::size_t>(r * ld)]);
        }
        const ReducePlan plan = PlanReduce(n, cols, 16);
        const DeviceArray<float> logits(part), workspace(plan.workspace_floats);
        report.Ok(cuda::SurprisalChunk(logits.get(), ld, n, cols, first, dt.get(), plan,
                                       workspace.get(), state.get(), nullptr));
        static_cast<void>(state.ToHost());  // the chunk's memory is freed here
      }
      report.Ok(cuda::SurprisalFinish(state.get(), n, out.get(), lse.get(), nullptr));
      const std::vector<float> got = out.ToHost(), got_lse = lse.ToHost();
      for (std::int64_t r = 0; r < n; ++r) {
        const std::size_t i = static_cast<std::size_t>(r);
        const float want = baton::LogSumExp(&x[static_cast<std::size_t>(r * vocab)], vocab);
        const float logit = x[static_cast<std::size_t>(r * vocab + targets[i])];
        // A thread's terms in a row, each with an exp of 2 ulp; rescaling and merging in 13 steps
        // of three roundings; the log and the two roundings of results of this size.
        const double terms = static_cast<double>(std::min<std::int64_t>(vocab, 4096)) / 256;
        const double tolerance = kUlp * (2 * (terms + 2) + 40 + 4 * (1 + std::fabs(want)));
        report.Near("lse", i, got_lse[i], want, tolerance);
        report.Near("surprisal", i, got[i], want - logit,
                    tolerance + kUlp * 2 * (std::fabs(want) + std::fabs(logit)));
      }
    }
  }
}

}  // namespace

std::vector<Check> CodeChecks() {
  return {{"QuantizeRows", "int8", CheckQuantize<CodeType::kInt8>},
          {"QuantizeRows", "int4", CheckQuantize<CodeType::kInt4>},
          {"DequantizeRows", "int8", CheckDequantize<CodeType::kInt8>},
          {"DequantizeRows", "int4", CheckDequantize<CodeType::kInt4>},
          {"EmbeddingCodes", "int8", CheckEmbeddingCodes<CodeType::kInt8>},
          {"EmbeddingCodes", "int4", CheckEmbeddingCodes<CodeType::kInt4>},
          {"MultiplyCodes", "int8", CheckProduct<CodeType::kInt8>},
          {"MultiplyCodes", "int4", CheckProduct<CodeType::kInt4>},
          {"ArgMax", "fp32", CheckArgMax},
          {"SurprisalChunk", "fp32", CheckSurprisal},
          {"SurprisalFinish", "fp32", CheckSurprisal}};
}

}  // namespace baton::check
