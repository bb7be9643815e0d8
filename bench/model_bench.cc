// Tokens per second of the model path: prefill at several lengths, decode at several batch sizes.
//
//   model_bench MODEL [--dtype fp32|bf16|fp16|int8|int4|file] [--kv-dtype fp32|bf16|fp16]
//               [--threads N] [--repeat R] [--prefill 512,2048]
//               [--decode 1,8] [--context 512] [--tokens 64]
//
// --dtype is that of the weights; K and V are kept in it too unless --kv-dtype says otherwise, or
// in bf16 where it is not one of theirs. Prints one JSON object per line: {"engine", "dtype",
// "what", "size", "tokens_per_s": [...]} and, for decode, "cpu_s": processor seconds of the
// process, and "gap_ms", "worst_gap_ms": the median and the longest time of a step, an element per
// repetition each.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/model/model.h"
#include "common/model/single_sequence.h"
#include "common/weights/model_source.h"
#include "kernels/executor.h"

namespace baton {
namespace {

std::vector<int> Numbers(const std::string& list) {
  std::vector<int> out;
  std::stringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) out.push_back(std::stoi(item));
  return out;
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct DecodeRun {
  double tokens_per_s = 0;
  double cpu_s = 0;
  double gap_ms = 0;
  double worst_gap_ms = 0;
};

// Token ids without meaning; speed does not depend on them.
std::vector<std::int32_t> Tokens(int n, std::int64_t vocab, int seed) {
  std::vector<std::int32_t> out(n);
  for (int i = 0; i < n; ++i) {
    out[i] = static_cast<std::int32_t>((1000003LL * (i + 1) + 7919LL * seed) % vocab);
  }
  return out;
}

class Bench {
 public:
  Bench(std::shared_ptr<const Model> model, Executor& executor, DType dtype)
      : model_(std::move(model)), pass_(model_, nullptr, executor), dtype_(dtype) {}

  double Prefill(int n) {
    auto sequence = SingleSequence::Create(model_->config(), dtype_, n).value();
    const double start = Seconds();
    Run(*sequence, Tokens(n, model_->config().vocab, 1));
    return n / (Seconds() - start);
  }

  DecodeRun Decode(int batch, int context, int steps) {
    std::vector<std::unique_ptr<SingleSequence>> sequences;
    for (int b = 0; b < batch; ++b) {
      sequences.push_back(
          SingleSequence::Create(model_->config(), dtype_, context + steps).value());
      Run(*sequences.back(), Tokens(context, model_->config().vocab, b));
    }
    std::vector<std::int32_t> ids(batch, 1), positions(batch), rows(batch);
    std::vector<SequenceSlice> slices;
    for (int b = 0; b < batch; ++b) {
      rows[b] = b;
      slices.push_back({b, b + 1, &sequences[b]->view(), kNoAdapter});
    }
    const std::int64_t vocab = model_->config().vocab;
    std::vector<double> gaps;
    const double cpu = CpuSeconds();
    const double start = Seconds();
    for (int step = 0; step < steps; ++step) {
      const double begin = Seconds();
      std::fill(positions.begin(), positions.end(), context + step);
      float* h = pass_.Embed(ids);
      pass_.RunLayers(0, static_cast<int>(model_->config().layers), h,
                      {.positions = positions, .sequences = slices}, nullptr);
      const float* logits = pass_.Logits(h, rows);
      for (int b = 0; b < batch; ++b) {
        const float* row = logits + b * vocab;
        ids[b] = static_cast<std::int32_t>(std::max_element(row, row + vocab) - row);
      }
      gaps.push_back(1e3 * (Seconds() - begin));
    }
    DecodeRun run;
    run.tokens_per_s = batch * steps / (Seconds() - start);
    run.cpu_s = CpuSeconds() - cpu;
    std::sort(gaps.begin(), gaps.end());
    run.gap_ms = gaps[gaps.size() / 2];
    run.worst_gap_ms = gaps.back();
    return run;
  }

 private:
  void Run(SingleSequence& sequence, const std::vector<std::int32_t>& tokens) {
    constexpr std::size_t kChunk = 512;
    for (std::size_t begin = 0; begin < tokens.size(); begin += kChunk) {
      const auto n = static_cast<std::int32_t>(std::min(kChunk, tokens.size() - begin));
      std::vector<std::int32_t> positions(n);
      for (std::int32_t i = 0; i < n; ++i) positions[i] = static_cast<std::int32_t>(begin) + i;
      const SequenceSlice slice{0, n, &sequence.view(), kNoAdapter};
      float* h = pass_.Embed({tokens.data() + begin, static_cast<std::size_t>(n)});
      pass_.RunLayers(0, static_cast<int>(model_->config().layers), h,
                      {.positions = positions, .sequences = {&slice, 1}}, nullptr);
      const std::int32_t last = n - 1;
      pass_.Logits(h, {&last, 1});
    }
  }

  std::shared_ptr<const Model> model_;
  ForwardPass pass_;
  DType dtype_;
};

// `series`: names and an element per repetition.
void Print(const std::string& dtype, const char* what, int size,
           const std::vector<std::pair<const char*, std::vector<double>>>& series) {
  std::printf("{\"engine\": \"baton\", \"dtype\": \"%s\", \"what\": \"%s\", \"size\": %d",
              dtype.c_str(), what, size);
  for (const auto& [name, values] : series) {
    std::printf(", \"%s\": [", name);
    for (std::size_t i = 0; i < values.size(); ++i) std::printf("%s%.3f", i ? ", " : "", values[i]);
    std::printf("]");
  }
  std::printf("}\n");
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  std::map<std::string, std::string> flags = {
      {"--dtype", "fp32"}, {"--threads", "2"},   {"--repeat", "3"},  {"--prefill", "512,2048"},
      {"--decode", "1,8"}, {"--context", "512"}, {"--tokens", "64"}, {"--kv-dtype", ""}};
  bool ok = argc >= 2 && argc % 2 == 0;
  for (int i = 2; ok && i + 1 < argc; i += 2) {
    ok = flags.count(argv[i]) == 1;
    if (ok) flags[argv[i]] = argv[i + 1];
  }
  const std::map<std::string, DType> dtypes = {
      {"fp32", DType::kF32}, {"bf16", DType::kBF16}, {"fp16", DType::kF16}};
  const auto& names = WeightDTypeNames();
  const std::map<std::string, WeightDType> weights(names.begin(), names.end());
  if (flags["--kv-dtype"].empty()) {
    flags["--kv-dtype"] = dtypes.count(flags["--dtype"]) == 1 ? flags["--dtype"] : "bf16";
  }
  if (!ok || weights.count(flags["--dtype"]) == 0 || dtypes.count(flags["--kv-dtype"]) == 0) {
    std::fprintf(stderr,
                 "usage: model_bench MODEL [--dtype fp32|bf16|fp16|int8|int4|file] "
                 "[--kv-dtype fp32|bf16|fp16] [--threads N] "
                 "[--repeat R] [--prefill N,N] [--decode B,B] [--context N] "
                 "[--tokens N]\n");
    return 2;
  }
  const DType kv_dtype = dtypes.at(flags["--kv-dtype"]);
  const auto executor = MakeThreadPool(std::stoi(flags["--threads"]));
  auto source = ModelSource::Open(argv[1]);
  if (!source.ok()) {
    std::fprintf(stderr, "%s\n", source.status().ToString().c_str());
    return 1;
  }
  auto model = Model::Load(
      **source, {.weight_dtype = weights.at(flags["--dtype"]), .executor = executor.get()});
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
    return 1;
  }
  Bench bench(*model, *executor, kv_dtype);
  bench.Prefill(64);  // warm
  const int repeat = std::stoi(flags["--repeat"]);
  for (int n : Numbers(flags["--prefill"])) {
    std::vector<double> rates;
    for (int r = 0; r < repeat; ++r) rates.push_back(bench.Prefill(n));
    Print(flags["--dtype"], "prefill", n, {{"tokens_per_s", rates}});
  }
  for (int batch : Numbers(flags["--decode"])) {
    std::vector<double> rates, cpu, gaps, worst;
    for (int r = 0; r < repeat; ++r) {
      const DecodeRun run =
          bench.Decode(batch, std::stoi(flags["--context"]), std::stoi(flags["--tokens"]));
      rates.push_back(run.tokens_per_s);
      cpu.push_back(run.cpu_s);
      gaps.push_back(run.gap_ms);
      worst.push_back(run.worst_gap_ms);
    }
    Print(flags["--dtype"], "decode", batch,
          {{"tokens_per_s", rates}, {"cpu_s", cpu}, {"gap_ms", gaps}, {"worst_gap_ms", worst}});
  }
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
