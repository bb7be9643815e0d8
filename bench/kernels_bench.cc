// Every CPU op at the shapes of SmolLM2-135M, held against what the machine reaches.
//
//   kernels_bench [--markdown] [Google Benchmark's flags, as --benchmark_filter=attention]
//
// Each line shows GB/s of the bytes that the op must move (weights, keys and values, rows in and
// out; once each) and GFLOP/s (fused multiply-adds as two, exp as one), "% read" and "% FMA": their
// shares of machine_peaks.h, measured at the start with as many threads. The larger of the two is
// how near the op is to its roof. One thread is timed by its processor time, two by the clock.
// Weights of few rows, pages and rows of many are taken from buffers in turn that the caches cannot
// hold; what stays in a cache can read faster than memory.
// --markdown prints one table instead, an op per row, each with its best repetition (neighbours
// only slow it down): kernels_bench --markdown --benchmark_repetitions=5 --benchmark_min_time=0.05
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/machine_peaks.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/executor.h"
#include "kernels/kv_write.h"
#include "kernels/packed_matrix.h"
#include "kernels/sampling.h"
#include "kernels/weight_format.h"

namespace baton {
namespace {

constexpr std::int64_t kHidden = 576, kFfn = 1536, kVocab = 49152;
constexpr int kHeads = 9, kKvHeads = 3, kHeadDim = 64;
// More than any cache of one chip that matters here.
constexpr std::size_t kBeyondCaches = std::size_t{200} << 20;

std::vector<float> Random(std::size_t n) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> v(n);
  for (float& x : v) x = uniform(rng);
  return v;
}

// A pool and what the machine reaches with it.
struct Threads {
  explicit Threads(int count)
      : executor(MakeThreadPool(count)), peaks(MeasureMachinePeaks(*executor)) {}
  std::unique_ptr<Executor> executor;
  MachinePeaks peaks;
};

Threads& WithThreads(int count) {
  static std::map<int, Threads> all;
  return all.try_emplace(count, count).first->second;
}

// Copies of `bytes` that are read in turn.
std::size_t Copies(std::size_t bytes) { return std::max<std::size_t>(1, kBeyondCaches / bytes); }

// Times step(0), step(1), ... step(copies - 1), step(0), ...: `flops` and `bytes` each.
void Measure(benchmark::State& state, int threads, double flops, double bytes, std::size_t copies,
             const std::function<void(std::size_t)>& step) {
  std::size_t next = 0;
  for (auto _ : state) {
    step(next);
    next = next + 1 == copies ? 0 : next + 1;
    benchmark::ClobberMemory();
  }
  using benchmark::Counter;
  const auto rate = Counter::kIsIterationInvariantRate;
  const MachinePeaks& peaks = WithThreads(threads).peaks;
  state.counters["GB/s"] = Counter(bytes * 1e-9, rate);
  state.counters["GFLOP/s"] = Counter(flops * 1e-9, rate);
  state.counters["% read"] = Counter(100 * bytes / peaks.read_bytes_per_s, rate);
  state.counters["% FMA"] = Counter(100 * flops / peaks.flop_per_s, rate);
}

template <typename T>
struct Named {
  const char* name;
  T type;
};
using Weights = Named<WeightFormat>;
using Pages = Named<DType>;

// y[n, rows] = x[n, cols] W^T.
void Product(benchmark::State& state, Weights format, std::int64_t n, std::int64_t rows,
             std::int64_t cols, int threads) {
  Executor& executor = *WithThreads(threads).executor;
  const auto w = Random(static_cast<std::size_t>(rows * cols));
  const auto x = Random(static_cast<std::size_t>(n * cols));
  std::vector<float> y(static_cast<std::size_t>(n * rows));
  std::vector<PackedMatrix> m;
  m.push_back(PackedMatrix::Pack(w.data(), rows, cols, format.type, executor));
  const std::size_t copies = n >= 64 ? 1 : Copies(m[0].bytes());
  while (m.size() < copies) {
    m.push_back(PackedMatrix::Pack(w.data(), rows, cols, format.type, executor));
  }
  Measure(
      state, threads, 2.0 * static_cast<double>(n * rows * cols),
      static_cast<double>(m[0].bytes()) + 4.0 * static_cast<double>(x.size() + y.size()), copies,
      [&](std::size_t i) { m[i].Multiply(x.data(), cols, n, y.data(), rows, false, executor); });
}

// Pages of one sequence of `context` tokens, filled, for every KV head.
class Sequence {
 public:
  Sequence(const KvPageLayout& layout, std::int32_t context) {
    const std::int32_t pages = (context + kPageRows - 1) / kPageRows;
    memory_.resize(static_cast<std::size_t>(kKvHeads * pages) * layout.page_bytes() + 64);
    std::byte* base = memory_.data();
    base += (64 - reinterpret_cast<std::uintptr_t>(base) % 64) % 64;
    const auto row = Random(kHeadDim);
    tables_.resize(kKvHeads);
    for (auto& table : tables_) {
      for (std::int32_t p = 0; p < pages; ++p, base += layout.page_bytes()) {
        for (int r = 0; r < kPageRows; ++r) {
          WriteKvRow(layout, base, r, row.data(), row.data(), p * kPageRows + r);
        }
        table.push_back(base);
      }
      segments_.push_back({table.data(), context, nullptr, true});
    }
  }
  const KvSegment* segments() const { return segments_.data(); }

 private:
  std::vector<std::byte> memory_;
  std::vector<std::vector<const std::byte*>> tables_;
  std::vector<KvSegment> segments_;
};

// The last `queries` of `context` tokens ask, in each of `tasks` sequences.
void AttentionOp(benchmark::State& state, Pages format, std::int32_t queries, std::int32_t context,
                 std::int64_t tasks, int threads) {
  Executor& executor = *WithThreads(threads).executor;
  const KvPageLayout layout{kHeadDim, format.type};
  AttentionShape shape;
  shape.q_heads = kHeads;
  shape.kv_heads = kKvHeads;
  shape.head_dim = kHeadDim;
  shape.scale = 0.125f;
  const double kv_bytes =
      2.0 * kKvHeads * context * kHeadDim * static_cast<double>(DTypeSize(format.type));
  // Sequences of one call and, for few queries, of the calls after it until the caches are full.
  const std::size_t calls =
      queries > 1 ? 1 : Copies(static_cast<std::size_t>(kv_bytes * static_cast<double>(tasks)));
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i < calls * static_cast<std::size_t>(tasks); ++i) {
    sequences.emplace_back(layout, context);
  }
  const std::int32_t offsets[] = {0, 1, 2, 3};
  const auto q = Random(static_cast<std::size_t>(queries) * kHidden);
  std::vector<float> out(q.size() * static_cast<std::size_t>(tasks));
  std::vector<std::int32_t> positions;
  double seen = 0;  // keys
  for (std::int32_t i = context - queries; i < context; ++i) {
    positions.push_back(i);
    seen += i + 1;
  }
  std::vector<AttentionTask> list(sequences.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    AttentionTask& task = list[i];
    task.q = q.data();
    task.ldq = kHidden;
    task.q_positions = positions.data();
    task.num_q = queries;
    task.segments = sequences[i].segments();
    task.segment_offsets = offsets;
    task.out = out.data() + i % static_cast<std::size_t>(tasks) * q.size();
    task.ldo = kHidden;
  }
  const double rows_bytes = 8.0 * static_cast<double>(q.size());
  Measure(state, threads, static_cast<double>(tasks) * seen * kHeads * kHeadDim * 4,
          static_cast<double>(tasks) * (kv_bytes + rows_bytes), calls, [&](std::size_t i) {
            Attention(shape, layout, &list[i * static_cast<std::size_t>(tasks)], tasks, executor);
          });
}

// Rows of x, and of y where there is one, in turn from buffers of kBeyondCaches when there are
// many.
struct Rows {
  Rows(std::int64_t n, std::int64_t d, int arrays)
      : size(static_cast<std::size_t>(n * d)),
        copies(n > 1 ? Copies(size * 4 * static_cast<std::size_t>(arrays)) : 1),
        x(Random(size * copies)) {}
  std::size_t size;
  std::size_t copies;
  std::vector<float> x;
};

void RmsNormOp(benchmark::State& state, std::int64_t n, int threads) {
  Executor& executor = *WithThreads(threads).executor;
  Rows rows(n, kHidden, 2);
  std::vector<float> y(rows.x.size());
  const auto gamma = Random(kHidden);
  Measure(state, threads, 4.0 * static_cast<double>(rows.size),
          8.0 * static_cast<double>(rows.size), rows.copies, [&](std::size_t i) {
            RmsNorm(&rows.x[i * rows.size], kHidden, gamma.data(), 1e-5f, n, kHidden,
                    &y[i * rows.size], kHidden, executor);
          });
}

void RopeOp(benchmark::State& state, std::int64_t n, int threads) {
  Executor& executor = *WithThreads(threads).executor;
  Rows rows(n, kHidden, 1);
  const auto inv_freq = Random(kHeadDim / 2);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>(i);
  Measure(state, threads, 3.0 * static_cast<double>(rows.size),
          8.0 * static_cast<double>(rows.size), rows.copies, [&](std::size_t i) {
            Rope(&rows.x[i * rows.size], kHidden, positions.data(), inv_freq.data(), 1.0f, kHeads,
                 kHeadDim, n, executor);
          });
}

void SiluMulOp(benchmark::State& state, std::int64_t n, int threads) {
  Executor& executor = *WithThreads(threads).executor;
  Rows rows(n, 2 * kFfn, 1);
  std::vector<float> y(static_cast<std::size_t>(n) * kFfn);
  const double outputs = static_cast<double>(y.size());
  Measure(state, threads, 5.0 * outputs, 12.0 * outputs, rows.copies, [&](std::size_t i) {
    const float* gate = &rows.x[i * rows.size];
    SiluMul(gate, 2 * kFfn, gate + kFfn, 2 * kFfn, n, kFfn, y.data(), kFfn, executor);
  });
}

// n tokens of one KV head into their pages; one thread, as the model does it.
void KvWriteOp(benchmark::State& state, Pages format, std::int64_t n) {
  const KvPageLayout layout{kHeadDim, format.type};
  Rows rows(n, 2 * kHeadDim, 2);
  const std::size_t pages = static_cast<std::size_t>((n + kPageRows - 1) / kPageRows);
  std::vector<std::byte> memory(rows.copies * pages * layout.page_bytes() + 64);
  std::byte* base = memory.data();
  base += (64 - reinterpret_cast<std::uintptr_t>(base) % 64) % 64;
  const double values = static_cast<double>(rows.size);
  Measure(state, 1, 0, values * (4.0 + static_cast<double>(DTypeSize(format.type))), rows.copies,
          [&](std::size_t i) {
            const float* k = &rows.x[i * rows.size];
            for (std::int64_t r = 0; r < n; ++r, k += 2 * kHeadDim) {
              std::byte* page = base + (i * pages + static_cast<std::size_t>(r / kPageRows)) *
                                           layout.page_bytes();
              WriteKvRow(layout, page, static_cast<int>(r % kPageRows), k, k + kHeadDim,
                         static_cast<std::int32_t>(r));
            }
          });
}

// What sampling reads of one row of logits; one thread, as the engines do it.
void ArgMaxOp(benchmark::State& state) {
  Rows rows(2, kVocab / 2, 1);
  Measure(state, 1, static_cast<double>(kVocab), 4.0 * static_cast<double>(kVocab), rows.copies,
          [&](std::size_t i) { benchmark::DoNotOptimize(ArgMax(&rows.x[i * rows.size], kVocab)); });
}

void LogSumExpOp(benchmark::State& state) {
  Rows rows(2, kVocab / 2, 1);
  Measure(
      state, 1, 3.0 * static_cast<double>(kVocab), 4.0 * static_cast<double>(kVocab), rows.copies,
      [&](std::size_t i) { benchmark::DoNotOptimize(LogSumExp(&rows.x[i * rows.size], kVocab)); });
}

// The machine's own roofs as lines of their own, so that a drift during the run shows.
void PeaksOp(benchmark::State& state, int threads) {
  MachinePeaks peaks;
  for (auto _ : state) peaks = MeasureMachinePeaks(*WithThreads(threads).executor);
  const MachinePeaks& start = WithThreads(threads).peaks;
  state.counters["GB/s"] = peaks.read_bytes_per_s * 1e-9;
  state.counters["GFLOP/s"] = peaks.flop_per_s * 1e-9;
  state.counters["% read"] = 100 * peaks.read_bytes_per_s / start.read_bytes_per_s;
  state.counters["% FMA"] = 100 * peaks.flop_per_s / start.flop_per_s;
}

void Register(const std::string& name, int threads,
              const std::function<void(benchmark::State&)>& run) {
  auto* b =
      benchmark::RegisterBenchmark((name + "/threads:" + std::to_string(threads)).c_str(), run);
  // One thread by its processor time, which neighbours do not lengthen; more by the clock.
  if (threads > 1) b->UseRealTime();
}

void RegisterAll() {
  std::vector<Weights> formats;
  for (WeightFormat f : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16,
                         WeightFormat::kQ8_0, WeightFormat::kQ4_1}) {
    formats.push_back({FormatName(f), f});
  }
  const std::vector<Pages> pages = {{"fp32", DType::kF32}, {"bf16", DType::kBF16}};
  for (int t : {1, 2}) {
    benchmark::RegisterBenchmark(("machine/threads:" + std::to_string(t)).c_str(),
                                 [=](benchmark::State& s) { PeaksOp(s, t); })
        ->Iterations(1);
    for (const Weights& f : formats) {
      for (std::int64_t n : {1, 8, 64, 512}) {
        Register("product 3072x576, " + std::string(f.name) + ", n = " + std::to_string(n), t,
                 [=](benchmark::State& s) { Product(s, f, n, 2 * kFfn, kHidden, t); });
      }
      Register("product 49152x576 (head), " + std::string(f.name) + ", n = 1", t,
               [=](benchmark::State& s) { Product(s, f, 1, kVocab, kHidden, t); });
    }
    for (const Pages& f : pages) {
      const std::string name = f.name;
      for (std::int32_t context : {256, 2048}) {
        for (std::int64_t tasks : {1, 8}) {
          Register("attention decode, " + name + ", batch " + std::to_string(tasks) + ", context " +
                       std::to_string(context),
                   t, [=](benchmark::State& s) { AttentionOp(s, f, 1, context, tasks, t); });
        }
        Register("attention prefill, " + name + ", last " + std::to_string(std::min(context, 512)) +
                     " of " + std::to_string(context),
                 t, [=](benchmark::State& s) {
                   AttentionOp(s, f, std::min(context, 512), context, 1, t);
                 });
      }
    }
    for (std::int64_t n : {1, 512}) {
      const std::string rows = ", n = " + std::to_string(n);
      Register("rms_norm" + rows, t, [=](benchmark::State& s) { RmsNormOp(s, n, t); });
      Register("rope" + rows, t, [=](benchmark::State& s) { RopeOp(s, n, t); });
      Register("silu_mul" + rows, t, [=](benchmark::State& s) { SiluMulOp(s, n, t); });
    }
  }
  for (const Pages& f : pages) {
    for (std::int64_t n : {1, 512}) {
      Register("kv page write, " + std::string(f.name) + ", n = " + std::to_string(n), 1,
               [=](benchmark::State& s) { KvWriteOp(s, f, n); });
    }
  }
  Register("argmax of 49152", 1, ArgMaxOp);
  Register("log_sum_exp of 49152", 1, LogSumExpOp);
}

// One row per op, a group of columns per number of threads; the best of the repetitions.
class MarkdownReporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const std::string full = run.run_name.function_name;
      const std::size_t at = full.find("/threads:");
      if (at == std::string::npos || run.error_occurred || run.run_type != Run::RT_Iteration) {
        continue;
      }
      const std::string op = full.substr(0, at);
      if (rows_.count(op) == 0) order_.push_back(op);
      const bool two = full.back() == '2';
      Best& best = rows_[op][two ? 1 : 0];
      const double seconds = (two ? run.real_accumulated_time : run.cpu_accumulated_time) /
                             static_cast<double>(run.iterations);
      if (!best.cells.empty() && best.seconds <= seconds) continue;
      const auto counter = [&](const char* name) { return run.counters.at(name).value; };
      char cells[160];
      std::snprintf(cells, sizeof(cells), " %.1f | %.1f | %.1f | %.0f %% | %.0f %% |",
                    1e6 * seconds, counter("GB/s"), counter("GFLOP/s"), counter("% read"),
                    counter("% FMA"));
      best = {seconds, cells};
    }
  }

  void Finalize() override {
    std::printf(
        "| op | 1 thread: us | GB/s | GFLOP/s | of read | of FMA "
        "| 2 threads: us | GB/s | GFLOP/s | of read | of FMA |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (const std::string& op : order_) {
      const auto& cells = rows_.at(op);
      const char* none = " | | | | |";
      std::printf("| %s |%s%s\n", op.c_str(),
                  cells[0].cells.empty() ? none : cells[0].cells.c_str(),
                  cells[1].cells.empty() ? none : cells[1].cells.c_str());
    }
  }

 private:
  struct Best {
    double seconds = 0;
    std::string cells;
  };
  std::vector<std::string> order_;
  std::map<std::string, std::array<Best, 2>> rows_;
};

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  const auto end = std::remove_if(
      argv + 1, argv + argc, [](const char* arg) { return std::string_view(arg) == "--markdown"; });
  const bool markdown = end != argv + argc;
  argc = static_cast<int>(end - argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  baton::RegisterAll();
  if (markdown) {
    baton::MarkdownReporter reporter;
    benchmark::RunSpecifiedBenchmarks(&reporter);
  } else {
    benchmark::RunSpecifiedBenchmarks();
  }
  return 0;
}
