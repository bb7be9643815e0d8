// Products and attention of the CPU kernels at the shapes of SmolLM2-135M, with the share of the
// machine they reach: GFLOP/s for many rows, GB/s of weights or keys for few.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu_features.h"
#include "kernels/elementwise.h"
#include "kernels/executor.h"
#include "kernels/kv_write.h"
#include "kernels/packed_matrix.h"

namespace baton {
namespace {

std::vector<float> Random(std::size_t n) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> v(n);
  for (float& x : v) x = uniform(rng);
  return v;
}

Executor& Pool(int threads) {
  static std::unique_ptr<Executor> pools[3];
  auto& pool = pools[threads];
  if (pool == nullptr) pool = MakeThreadPool(threads);
  return *pool;
}

void Rates(benchmark::State& state, double flops, double bytes) {
  using benchmark::Counter;
  const auto per_second = Counter::kIsIterationInvariantRate;
  state.counters["GFLOP/s"] = Counter(flops * 1e-9, per_second);
  state.counters["GB/s"] = Counter(bytes * 1e-9, per_second);
}

// WeightFormat as an argument.
constexpr std::int64_t kFp32 = static_cast<std::int64_t>(WeightFormat::kF32);
constexpr std::int64_t kBf16 = static_cast<std::int64_t>(WeightFormat::kBF16);
constexpr std::int64_t kFp16 = static_cast<std::int64_t>(WeightFormat::kF16);
constexpr std::int64_t kQ8 = static_cast<std::int64_t>(WeightFormat::kQ8_0);
constexpr std::int64_t kQ4 = static_cast<std::int64_t>(WeightFormat::kQ4_1);

// One register tile over data in L1: what the inner loop reaches at best, for `rows` rows of x.
void BM_Tile(benchmark::State& state) {
  alignas(64) static std::byte w[4 * 32 * 256 * 4];  // zeros: values do not matter, alignment does
  const auto x = Random(12 * 256);
  alignas(64) float acc[4 * 12 * 32];
  GemmTileArgs g;
  g.panels = static_cast<int>(state.range(2));
  g.format = static_cast<WeightFormat>(state.range(1));
  g.rows = static_cast<int>(state.range(0));
  g.k = 256;
  g.xt = x.data();
  g.w = w;
  g.panel_stride = static_cast<std::size_t>(32 * PackedRowBytes(g.format, g.k));
  g.acc = acc;
  for (auto _ : state) {
    Kernels().gemm_tile(g);
    benchmark::ClobberMemory();
  }
  Rates(state, 2.0 * 32 * 256 * g.rows * g.panels, 0);
}
BENCHMARK(BM_Tile)
    ->ArgNames({"rows", "format", "panels"})
    ->ArgsProduct({{1, 2, 3, 4, 8, 11, 12}, {kFp32, kBf16, kQ8, kQ4}, {1}})
    ->ArgsProduct({{1, 2}, {kQ8, kQ4, kQ4 + 1, kQ4 + 2, kQ4 + 3, kQ4 + 4, kQ4 + 5}, {4}});

// Bytes per second of reading a buffer far larger than the caches.
void BM_ReadMemory(benchmark::State& state) {
  const auto data = std::vector<float>(64 << 20, 1.0f);
  Executor& executor = Pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    executor.ParallelFor(64, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        benchmark::DoNotOptimize(Kernels().max(data.data() + (i << 20), 1 << 20));
      }
    });
  }
  Rates(state, 0, 4.0 * (64 << 20));
}
BENCHMARK(BM_ReadMemory)->Arg(1)->Arg(2)->UseRealTime();

// rows x cols weights, enough copies to be read from memory where a model's would be.
void BM_Gemm(benchmark::State& state) {
  const std::int64_t n = state.range(0), rows = state.range(1), cols = state.range(2);
  const auto format = static_cast<WeightFormat>(state.range(3));
  Executor& executor = Pool(static_cast<int>(state.range(4)));
  const auto w = Random(static_cast<std::size_t>(rows * cols));
  const auto x = Random(static_cast<std::size_t>(n * cols));
  std::vector<float> y(static_cast<std::size_t>(n * rows));
  const std::size_t bytes = static_cast<std::size_t>(rows * PackedRowBytes(format, cols));
  const std::size_t copies =
      n >= 64 ? 1 : std::max<std::size_t>(1, (std::size_t{200} << 20) / bytes);
  std::vector<PackedMatrix> m;
  for (std::size_t i = 0; i < copies; ++i) {
    m.push_back(PackedMatrix::Pack(w.data(), rows, cols, format, executor));
  }
  std::size_t next = 0;
  for (auto _ : state) {
    m[next].Multiply(x.data(), cols, n, y.data(), rows, false, executor);
    next = (next + 1) % copies;
    benchmark::ClobberMemory();
  }
  Rates(state, 2.0 * static_cast<double>(n * rows * cols), static_cast<double>(bytes));
}
BENCHMARK(BM_Gemm)
    ->ArgNames({"n", "rows", "cols", "format", "threads"})
    ->ArgsProduct({{1, 8, 512}, {1536}, {576}, {kFp32, kBf16, kQ8, kQ4}, {1, 2}})
    ->ArgsProduct({{1, 8, 512}, {576}, {1536}, {kFp32, kBf16, kQ8, kQ4}, {2}})
    ->ArgsProduct({{1, 2, 4}, {49152}, {576}, {kFp32, kBf16, kFp16, kQ8, kQ4}, {2}})
    ->UseRealTime();

// 9 query heads over 3 KV heads of 64; `context` keys, the last `queries` of them ask.
void BM_Attention(benchmark::State& state) {
  const std::int32_t queries = static_cast<std::int32_t>(state.range(0));
  const std::int32_t context = static_cast<std::int32_t>(state.range(1));
  const std::int64_t tasks = state.range(2);
  const KvPageLayout layout{64, static_cast<DType>(state.range(3))};
  Executor& executor = Pool(static_cast<int>(state.range(4)));
  AttentionShape shape;
  shape.q_heads = 9;
  shape.kv_heads = 3;
  shape.head_dim = 64;
  shape.scale = 0.125f;
  const auto row = Random(64);
  const std::int32_t pages = (context + 15) / 16;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::vector<const std::byte*>> tables;
  std::vector<KvSegment> segments;
  for (std::int64_t t = 0; t < tasks * 3; ++t) {
    memory.emplace_back(static_cast<std::size_t>(pages) * layout.page_bytes() + 64);
    std::byte* base = memory.back().data();
    base += (64 - reinterpret_cast<std::uintptr_t>(base) % 64) % 64;
    tables.emplace_back();
    for (std::int32_t p = 0; p < pages; ++p)
      tables.back().push_back(base + static_cast<std::size_t>(p) * layout.page_bytes());
    for (std::int32_t i = 0; i < context; ++i) {
      WriteKvRow(layout, const_cast<std::byte*>(tables.back()[static_cast<std::size_t>(i / 16)]),
                 i % 16, row.data(), row.data(), i);
    }
  }
  for (const auto& table : tables) segments.push_back({table.data(), context, nullptr, true});
  const std::int32_t offsets[] = {0, 1, 2, 3};
  const auto q = Random(static_cast<std::size_t>(queries) * 576);
  std::vector<std::int32_t> positions;
  double seen = 0;
  for (std::int32_t i = context - queries; i < context; ++i) {
    positions.push_back(i);
    seen += i + 1;
  }
  std::vector<float> out(q.size() * static_cast<std::size_t>(tasks));
  std::vector<AttentionTask> list;
  for (std::int64_t t = 0; t < tasks; ++t) {
    AttentionTask task;
    task.q = q.data();
    task.ldq = 576;
    task.q_positions = positions.data();
    task.num_q = queries;
    task.segments = &segments[static_cast<std::size_t>(t * 3)];
    task.segment_offsets = offsets;
    task.out = out.data() + static_cast<std::size_t>(t) * q.size();
    task.ldo = 576;
    list.push_back(task);
  }
  for (auto _ : state) {
    Attention(shape, layout, list.data(), tasks, executor);
    benchmark::ClobberMemory();
  }
  Rates(state, static_cast<double>(tasks) * seen * 9 * 64 * 4,
        static_cast<double>(tasks) * 3 * context * 64 * 2 *
            static_cast<double>(DTypeSize(layout.dtype)));
}
BENCHMARK(BM_Attention)
    ->ArgNames({"queries", "context", "tasks", "dtype", "threads"})
    ->ArgsProduct({{512}, {512, 4096}, {1}, {0, 1}, {2}})
    ->ArgsProduct({{1}, {512, 4096}, {1, 8}, {0, 1}, {2}})
    ->UseRealTime();

void BM_Elementwise(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  Executor& executor = Pool(2);
  auto x = Random(static_cast<std::size_t>(n) * 1536);
  const auto g = Random(static_cast<std::size_t>(n) * 1536);
  std::vector<float> y(x.size());
  std::vector<std::int32_t> positions;
  for (std::int32_t i = 0; i < n; ++i) positions.push_back(i);
  for (auto _ : state) {
    switch (state.range(1)) {
      case 0:
        RmsNorm(x.data(), 576, g.data(), 1e-5f, n, 576, y.data(), 576, executor);
        break;
      case 1:
        Rope(x.data(), 576, positions.data(), g.data(), 1.0f, 9, 64, n, executor);
        break;
      case 2:
        SiluMul(x.data(), 1536, g.data(), 1536, n, 1536, y.data(), 1536, executor);
        break;
      default:
        benchmark::DoNotOptimize(LogSumExp(x.data(), n * 1536));
        break;
    }
    benchmark::ClobberMemory();
  }
  state.SetLabel(state.range(1) == 0   ? "rms_norm"
                 : state.range(1) == 1 ? "rope"
                 : state.range(1) == 2 ? "silu_mul"
                                       : "log_sum_exp");
}
BENCHMARK(BM_Elementwise)->ArgsProduct({{1, 512}, {0, 1, 2, 3}})->UseRealTime();

}  // namespace
}  // namespace baton
