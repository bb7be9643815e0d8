// How near the CUDA ops come to the memory bandwidth of a copy on the same chip.
//
//   cuda_bench [--json FILE]
//
// Bytes are what an op must read and write at least once; working sets are larger than any L2.
// Exit status 77 without a CUDA device.
#include <algorithm>
#include <functional>
#include <string>

#include "tests/kernels/cuda/check.h"

namespace baton::check {
namespace {

constexpr int kRounds = 10;

struct Row {
  std::string op, sizes;
  double microseconds, gigabytes_per_second, bar;  // bar: share of the copy, 0: none
};

// Median of kRounds, in seconds.
double Seconds(const std::function<cuda::LaunchStatus()>& op) {
  cudaEvent_t begin, end;
  Require(cudaEventCreate(&begin), "cudaEventCreate");
  Require(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> ms;
  for (int i = 0; i < kRounds + 2; ++i) {
    Require(cudaEventRecord(begin, nullptr), "cudaEventRecord");
    const cuda::LaunchStatus status = op();
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::exit(1);
    }
    Require(cudaEventRecord(end, nullptr), "cudaEventRecord");
    Require(cudaEventSynchronize(end), "an op");
    float t = 0;
    Require(cudaEventElapsedTime(&t, begin, end), "cudaEventElapsedTime");
    if (i >= 2) ms.push_back(t);
  }
  Require(cudaEventDestroy(begin), "cudaEventDestroy");
  Require(cudaEventDestroy(end), "cudaEventDestroy");
  std::nth_element(ms.begin(), ms.begin() + kRounds / 2, ms.end());
  return ms[kRounds / 2] * 1e-3;
}

class Bench {
 public:
  void Add(const std::string& op, const std::string& sizes, double bytes, double bar,
           const std::function<cuda::LaunchStatus()>& run) {
    const double s = Seconds(run);
    rows_.push_back({op, sizes, s * 1e6, bytes / s * 1e-9, bar});
  }
  void Print() const {
    std::printf("%-18s %-44s %10s %9s %7s %6s\n", "op", "sizes", "us", "GB/s", "of copy", "bar");
    for (const Row& r : rows_) {
      std::printf("%-18s %-44s %10.1f %9.1f %6.1f%% ", r.op.c_str(), r.sizes.c_str(),
                  r.microseconds, r.gigabytes_per_second, 100 * Share(r));
      if (r.bar > 0) std::printf("%5.0f%% %s", 100 * r.bar, Share(r) < r.bar ? "BELOW" : "");
      std::printf("\n");
    }
  }
  void Write(std::FILE* json) const {
    std::fprintf(json, "{\"benchmarks\": [");
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Row& r = rows_[i];
      std::fprintf(json,
                   "%s\n    {\"op\": \"%s\", \"sizes\": \"%s\", \"us\": %.2f, \"gb_per_s\": %.1f, "
                   "\"share_of_copy\": %.4f, \"bar\": %.2f}",
                   i == 0 ? "" : ",", r.op.c_str(), r.sizes.c_str(), r.microseconds,
                   r.gigabytes_per_second, Share(r), r.bar);
    }
    std::fprintf(json, "\n]}\n");
  }

 private:
  // The copy comes first.
  double Share(const Row& r) const {
    return r.gigabytes_per_second / rows_.front().gigabytes_per_second;
  }
  std::vector<Row> rows_;
};

DeviceArray<float> Floats(std::int64_t n) {
  DeviceArray<float> a(static_cast<std::size_t>(n));
  Require(cudaMemset(a.get(), 0, static_cast<std::size_t>(n) * sizeof(float)), "cudaMemset");
  return a;
}

void Elementwise(Bench* bench) {
  constexpr std::int64_t kRows = 16384, kDim = 8192, kHeadDim = 128;
  constexpr double kBytes = 4.0 * kRows * kDim;
  const DeviceArray<float> x = Floats(kRows * kDim), y = Floats(kRows * kDim),
                           z = Floats(kRows * kDim), gamma = Floats(kDim);
  const DeviceArray<std::int32_t> ids(std::vector<std::int32_t>(kRows, 7));
  const std::string sizes = "16384 x 8192";
  bench->Add("CopyFloats", sizes, 2 * kBytes, 0,
             [&] { return cuda::CopyFloats(x.get(), kRows * kDim, y.get(), nullptr); });
  bench->Add("RmsNorm", sizes, 2 * kBytes, 0.85, [&] {
    return cuda::RmsNorm(x.get(), kDim, gamma.get(), 1e-5f, kRows, kDim, y.get(), kDim, nullptr);
  });
  bench->Add("Rope", sizes, 2 * kBytes, 0.85, [&] {
    return cuda::Rope(x.get(), kDim, ids.get(), gamma.get(), 1.0f, kDim / kHeadDim, kHeadDim, kRows,
                      nullptr);
  });
  bench->Add("SiluMul", sizes, 3 * kBytes, 0.85, [&] {
    return cuda::SiluMul(x.get(), kDim, y.get(), kDim, kRows, kDim, z.get(), kDim, nullptr);
  });
  bench->Add("AddRows", sizes, 3 * kBytes, 0.85,
             [&] { return cuda::AddRows(x.get(), kDim, y.get(), kDim, kRows, kDim, nullptr); });
  std::vector<std::int32_t> spread(kRows);
  for (std::int64_t i = 0; i < kRows; ++i)
    spread[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 7919 % kRows);
  const DeviceArray<std::int32_t> every(spread);
  bench->Add("EmbeddingRows", sizes + " fp32", 2 * kBytes, 0.85, [&] {
    return cuda::EmbeddingRows(x.get(), DType::kF32, kRows, kDim, every.get(), kRows, y.get(), kDim,
                               nullptr);
  });
  for (CodeType type : {CodeType::kInt8, CodeType::kInt4}) {
    const double block = CodeBlockBytes(type) + 2.0 * CodeBlockScales(type);
    const double code_bytes = kRows * kDim / 32.0 * block;
    const std::string name = sizes + " " + CodeTypeName(type);
    const DeviceArray<std::uint8_t> codes(static_cast<std::size_t>(kRows * kDim));
    const DeviceArray<std::uint16_t> scales(static_cast<std::size_t>(kRows * kDim / 16));
    bench->Add("QuantizeRows", name, kBytes + code_bytes, 0.85, [&] {
      return cuda::QuantizeRows(x.get(), kDim, kRows, kDim, type, codes.get(), scales.get(),
                                nullptr);
    });
    bench->Add("DequantizeRows", name, kBytes + code_bytes, 0.85, [&] {
      return cuda::DequantizeRows(codes.get(), scales.get(), kRows, kDim, type, y.get(), kDim,
                                  nullptr);
    });
    for (std::int64_t n : {1, 8}) {
      bench->Add("MultiplyCodes", name + ", " + std::to_string(n) + " rows", code_bytes, 0.8, [&] {
        return cuda::MultiplyCodes(codes.get(), scales.get(), type, kRows, kDim, x.get(), kDim, n,
                                   y.get(), kRows, nullptr);
      });
    }
  }
}

void Logits(Bench* bench) {
  constexpr std::int64_t kRows = 1024, kVocab = 131072;
  const DeviceArray<float> x = Floats(kRows * kVocab), state = Floats(3 * kRows);
  const DeviceArray<std::int32_t> tokens(std::vector<std::int32_t>(kRows, 0));
  const ReducePlan plan = PlanReduce(kRows, kVocab, cuda::SmCount());
  const DeviceArray<float> workspace(plan.workspace_floats);
  bench->Add("ArgMax", "1024 x 131072", 4.0 * kRows * kVocab, 0.85, [&] {
    return cuda::ArgMax(x.get(), kVocab, kRows, kVocab, plan, workspace.get(), tokens.get(),
                        nullptr);
  });
  const DeviceArray<std::int32_t> targets(std::vector<std::int32_t>(kRows, 5));
  bench->Add("SurprisalChunk", "1024 x 131072", 4.0 * kRows * kVocab, 0, [&] {
    return cuda::SurprisalChunk(x.get(), kVocab, kRows, kVocab, 0, targets.get(), plan,
                                workspace.get(), state.get(), nullptr);
  });
}

// A batch of equal contexts over pages of one slab.
void Decode(Bench* bench, DType dtype, int q_heads, int tasks, int context) {
  constexpr int kHeads = 8, kHeadDim = 128;
  const KvPageLayout layout{kHeadDim, dtype};
  const int pages = (context + kPageRows - 1) / kPageRows;
  const std::size_t count = static_cast<std::size_t>(tasks) * kHeads * pages;
  const DeviceArray<std::byte> slab(count * layout.page_bytes());
  Require(cudaMemset(slab.get(), 0, count * layout.page_bytes()), "cudaMemset");
  std::vector<const std::byte*> table;
  for (std::size_t i = 0; i < count; ++i) table.push_back(slab.get() + i * layout.page_bytes());
  const DeviceArray<const std::byte*> device_table(table);
  std::vector<KvSegment> segments;
  std::vector<std::int32_t> offsets = {0}, q_begin = {0};
  for (int t = 0; t < tasks; ++t) {
    for (int h = 0; h < kHeads; ++h) {
      segments.push_back({device_table.get() + static_cast<std::ptrdiff_t>(t * kHeads + h) * pages,
                          context, nullptr, true});
      offsets.push_back(static_cast<std::int32_t>(segments.size()));
    }
    q_begin.push_back(t + 1);
  }
  const AttentionPlan plan =
      PlanAttention({q_heads, kHeads, kHeadDim, pages, cuda::SmCount()}, q_begin.data(), tasks);
  const std::int64_t width = static_cast<std::int64_t>(q_heads) * kHeadDim;
  const DeviceArray<KvSegment> device_segments(segments);
  const DeviceArray<std::int32_t> device_offsets(offsets),
      positions(std::vector<std::int32_t>(static_cast<std::size_t>(tasks), context - 1));
  const DeviceArray<AttentionTile> tiles(plan.tiles);
  const DeviceArray<float> q = Floats(tasks * width), out = Floats(tasks * width),
                           workspace(plan.workspace_floats);
  cuda::AttentionArgs args;
  args.q = q.get();
  args.ldq = args.ldo = width;
  args.q_positions = positions.get();
  args.segments = device_segments.get();
  args.segment_offsets = device_offsets.get();
  args.tiles = tiles.get();
  args.out = out.get();
  args.workspace = workspace.get();
  const AttentionShape shape{q_heads, kHeads, kHeadDim, 0.088f, 0};
  bench->Add("Attention",
             std::string("decode ") + DTypeName(dtype) + ", " + std::to_string(tasks) + " x " +
                 std::to_string(context) + ", group " + std::to_string(q_heads / kHeads),
             static_cast<double>(count) * static_cast<double>(layout.payload_bytes()), 0.8,
             [&] { return cuda::Attention(shape, layout, plan, args, nullptr); });
}

void RunAll(Bench* bench) {
  Elementwise(bench);
  Logits(bench);
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    Decode(bench, dtype, 32, 32, 4096);
    Decode(bench, dtype, 64, 32, 4096);
  }
  Decode(bench, DType::kBF16, 8, 32, 4096);
  Decode(bench, DType::kBF16, 32, 1, 131072);
}

}  // namespace
}  // namespace baton::check

int main(int argc, char** argv) {
  if (argc != 1 && !(argc == 3 && std::string(argv[1]) == "--json")) {
    std::fprintf(stderr, "usage: cuda_bench [--json FILE]\n");
    return 2;
  }
  if (baton::cuda::DeviceCount() == 0) {
    std::printf("cuda_bench: skipped, it needs a CUDA device and there is none\n");
    return 77;
  }
  baton::check::Bench bench;
  baton::check::RunAll(&bench);
  bench.Print();
  if (argc == 3) {
    std::FILE* json = std::fopen(argv[2], "w");
    if (json == nullptr) {
      std::perror(argv[2]);
      return 2;
    }
    bench.Write(json);
    std::fclose(json);
  }
  return 0;
}
