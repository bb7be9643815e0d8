#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "common/model/model_weights.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"

namespace baton {
namespace {

constexpr std::int64_t kSurprisalRows = 32;

// Uninitialised floats that only ever grow, so that the steady state allocates nothing.
class GrowBuffer {
 public:
  float* Get(std::int64_t floats) {
    if (floats > capacity_) {
      data_.reset();
      const std::size_t bytes = (static_cast<std::size_t>(floats) * sizeof(float) + 63) / 64 * 64;
      data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
      if (data_ == nullptr) throw std::bad_alloc();
      capacity_ = floats;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float[], Free> data_;
  std::int64_t capacity_ = 0;
};

// Consecutive rows of one adapter.
struct AdapterRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int adapter = kNoAdapter;
};

void AddBias(float* y, std::int64_t ldy, const std::vector<float>& bias, std::int64_t n,
             Executor& executor) {
  if (bias.empty()) return;
  const std::int64_t d = static_cast<std::int64_t>(bias.size());
  executor.ParallelFor(n, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* row = y + r * ldy;
      for (std::int64_t i = 0; i < d; ++i) row[i] += bias[i];
    }
  });
}

// The root of each row's mean square, as RmsNorm divides by.
void RowRms(const float* x, std::int64_t ldx, float eps, std::int64_t n, std::int64_t d, float* rms,
            Executor& executor) {
  executor.ParallelFor(n, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* row = x + r * ldx;
      double squares = 0;
      for (std::int64_t i = 0; i < d; ++i) squares += static_cast<double>(row[i]) * row[i];
      rms[r] = static_cast<float>(std::sqrt(squares / static_cast<double>(d) + eps));
    }
  });
}

// RMS norm of each head by itself, in place.
void HeadNorm(float* x, std::int64_t ldx, const std::vector<float>& gamma, float eps, int heads,
              int head_dim, std::int64_t n, Executor& executor) {
  if (gamma.empty()) return;
  for (int h = 0; h < heads; ++h) {
    float* head = x + static_cast<std::int64_t>(h) * head_dim;
    RmsNorm(head, ldx, gamma.data(), eps, n, head_dim, head, ldx, executor);
  }
}

}  // namespace

struct ForwardPass::Workspace {
  GrowBuffer embedded, normed, qkv, k_rotated, attention, gate_up, activated, lora, logits,
      gathered, h_in, rms;
  std::vector<AttentionTask> tasks;
  std::vector<AdapterRun> runs;
};

ForwardPass::ForwardPass(std::shared_ptr<const Model> model, const AdapterSet* adapters,
                         Executor& executor)
    : model_(std::move(model)),
      adapters_(adapters),
      executor_(executor),
      ws_(std::make_unique<Workspace>()) {}

ForwardPass::~ForwardPass() = default;

float* ForwardPass::Embed(std::span<const std::int32_t> tokens) {
  const Model::Weights& w = model_->weights();
  const std::int64_t hidden = w.config.hidden;
  const std::int64_t n = static_cast<std::int64_t>(tokens.size());
  float* out = ws_->embedded.Get(n * hidden);
  executor_.ParallelFor(n, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) w.embedding.UnpackRow(tokens[r], out + r * hidden);
  });
  return out;
}

namespace {

void FindRuns(const ForwardBatch& batch, std::vector<AdapterRun>& runs) {
  runs.clear();
  for (const SequenceSlice& s : batch.sequences) {
    if (s.adapter == kNoAdapter || s.row_begin == s.row_end) continue;
    if (!runs.empty() && runs.back().adapter == s.adapter && runs.back().end == s.row_begin) {
      runs.back().end = s.row_end;
    } else {
      runs.push_back({s.row_begin, s.row_end, s.adapter});
    }
  }
}

// y += (x A^T) B^T for the rows of each run.
template <typename DeltaOf>
void AddLora(const std::vector<AdapterRun>& runs, const DeltaOf& delta_of, const float* x,
             std::int64_t ldx, float* y, std::int64_t ldy, GrowBuffer& scratch,
             Executor& executor) {
  for (const AdapterRun& run : runs) {
    const LoraDelta& delta = delta_of(run.adapter);
    if (delta.parts.empty()) continue;
    const std::int64_t n = run.end - run.begin;
    const std::int64_t ranks = delta.a.rows();
    float* z = scratch.Get(n * ranks);
    delta.a.Multiply(x + run.begin * ldx, ldx, n, z, ranks, /*accumulate=*/false, executor);
    for (const LoraDelta::Part& part : delta.parts) {
      part.b.Multiply(z + part.a_row, ranks, n, y + run.begin * ldy + part.column, ldy,
                      /*accumulate=*/true, executor);
    }
  }
}

}  // namespace

void ForwardPass::RunLayers(int begin, int end, float* hidden, const ForwardBatch& batch,
                            CaptureHook* hook) {
  FindRuns(batch, ws_->runs);
  for (int layer = begin; layer < end; ++layer) {
    RunAttention(layer, hidden, batch, hook);
    RunMlp(layer, hidden, static_cast<std::int64_t>(batch.positions.size()));
  }
}

void ForwardPass::RunAttention(int layer, float* hidden, const ForwardBatch& batch,
                               CaptureHook* hook) {
  const Model::Weights& w = model_->weights();
  const AttentionShape& a = w.attention;
  const LayerWeights& l = w.layers[layer];
  const std::int64_t n = static_cast<std::int64_t>(batch.positions.size());
  const std::int64_t d = w.config.hidden, q_dim = w.q_dim(), kv_dim = w.kv_dim();
  const std::int64_t ld = q_dim + 2 * kv_dim;

  float* x = ws_->normed.Get(n * d);
  RmsNorm(hidden, d, l.input_norm.data(), w.rms_eps, n, d, x, d, executor_);
  float* q = ws_->qkv.Get(n * ld);
  float* k = q + q_dim;
  const float* v = k + kv_dim;
  l.qkv.Multiply(x, d, n, q, ld, /*accumulate=*/false, executor_);
  AddLora(
      ws_->runs, [&](int i) -> const LoraDelta& { return adapters_->packed(i).layers[layer].qkv; },
      x, d, q, ld, ws_->lora, executor_);
  AddBias(q, ld, l.qkv_bias, n, executor_);
  HeadNorm(q, ld, l.q_norm, w.rms_eps, a.q_heads, a.head_dim, n, executor_);
  HeadNorm(k, ld, l.k_norm, w.rms_eps, a.kv_heads, a.head_dim, n, executor_);

  // A hook sees K before RoPE, so with one K is rotated in a copy.
  float* k_rotated = k;
  std::int64_t ldk = ld;
  if (hook != nullptr) {
    k_rotated = ws_->k_rotated.Get(n * kv_dim);
    ldk = kv_dim;
    for (std::int64_t r = 0; r < n; ++r) {
      std::memcpy(k_rotated + r * kv_dim, k + r * ld, sizeof(float) * kv_dim);
    }
  }
  const float scale = static_cast<float>(w.config.rope.attention_factor);
  Rope(q, ld, batch.positions.data(), w.inv_freq.data(), scale, a.q_heads, a.head_dim, n,
       executor_);
  Rope(k_rotated, ldk, batch.positions.data(), w.inv_freq.data(), scale, a.kv_heads, a.head_dim, n,
       executor_);
  for (const SequenceSlice& s : batch.sequences) {
    s.view->Append(layer,
                   {.k = k_rotated + s.row_begin * ldk,
                    .ldk = ldk,
                    .v = v + s.row_begin * ld,
                    .ldv = ld,
                    .positions = batch.positions.subspan(s.row_begin, s.row_end - s.row_begin)});
  }
  if (hook != nullptr) Capture(layer, hidden, k, v, n, hook);

  float* attended = ws_->attention.Get(n * q_dim);
  Attend(layer, q, attended, batch);
  l.o.Multiply(attended, q_dim, n, hidden, d, /*accumulate=*/true, executor_);
  AddLora(
      ws_->runs, [&](int i) -> const LoraDelta& { return adapters_->packed(i).layers[layer].o; },
      attended, q_dim, hidden, d, ws_->lora, executor_);
  AddBias(hidden, d, l.o_bias, n, executor_);
}

void ForwardPass::Capture(int layer, const float* hidden, const float* k, const float* v,
                          std::int64_t n, CaptureHook* hook) {
  const Model::Weights& w = model_->weights();
  LayerCapture capture{
      .layer = layer, .rows = n, .k_pre_rope = k, .v = v, .ld_kv = w.q_dim() + 2 * w.kv_dim()};
  if (hook->WantsInput(layer)) {
    const std::int64_t d = w.config.hidden;
    float* h_in = ws_->h_in.Get(n * d);
    RmsNorm(hidden, d, nullptr, w.rms_eps, n, d, h_in, d, executor_);
    float* rms = ws_->rms.Get(n);
    RowRms(hidden, d, w.rms_eps, n, d, rms, executor_);
    capture.h_in = h_in;
    capture.rms = rms;
  }
  hook->OnKv(capture);
}

void ForwardPass::Attend(int layer, const float* q, float* out, const ForwardBatch& batch) {
  const Model::Weights& w = model_->weights();
  const std::int64_t q_dim = w.q_dim();
  const std::int64_t ld = q_dim + 2 * w.kv_dim();
  std::vector<AttentionTask>& tasks = ws_->tasks;
  tasks.clear();
  const KvPageLayout* layout = nullptr;
  for (const SequenceSlice& s : batch.sequences) {
    const auto positions = batch.positions.subspan(s.row_begin, s.row_end - s.row_begin);
    const LayerSegments& kv =
        s.view->Select(layer, {.q = q + s.row_begin * ld, .ldq = ld, .positions = positions});
    layout = &s.view->layout();
    tasks.push_back({.q = q + s.row_begin * ld,
                     .ldq = ld,
                     .q_positions = positions.data(),
                     .num_q = s.row_end - s.row_begin,
                     .segments = kv.segments.data(),
                     .segment_offsets = kv.offsets.data(),
                     .out = out + s.row_begin * q_dim,
                     .ldo = q_dim,
                     .lse = nullptr});
  }
  if (tasks.empty()) return;
  AttentionShape shape = w.attention;
  shape.window = w.layers[layer].window;
  Attention(shape, *layout, tasks.data(), static_cast<std::int64_t>(tasks.size()), executor_);
}

void ForwardPass::RunMlp(int layer, float* hidden, std::int64_t n) {
  const Model::Weights& w = model_->weights();
  const ModelConfig& c = w.config;
  const LayerWeights& l = w.layers[layer];
  const std::int64_t d = c.hidden, inner = c.ffn;

  float* x = ws_->normed.Get(n * d);
  RmsNorm(hidden, d, l.post_attention_norm.data(), w.rms_eps, n, d, x, d, executor_);
  float* gate = ws_->gate_up.Get(n * 2 * inner);
  l.gate_up.Multiply(x, d, n, gate, 2 * inner, /*accumulate=*/false, executor_);
  AddLora(
      ws_->runs,
      [&](int i) -> const LoraDelta& { return adapters_->packed(i).layers[layer].gate_up; }, x, d,
      gate, 2 * inner, ws_->lora, executor_);
  float* activated = ws_->activated.Get(n * inner);
  SiluMul(gate, 2 * inner, gate + inner, 2 * inner, n, inner, activated, inner, executor_);
  l.down.Multiply(activated, inner, n, hidden, d, /*accumulate=*/true, executor_);
  AddLora(
      ws_->runs, [&](int i) -> const LoraDelta& { return adapters_->packed(i).layers[layer].down; },
      activated, inner, hidden, d, ws_->lora, executor_);
}

const float* ForwardPass::Logits(const float* hidden, std::span<const std::int32_t> rows) {
  const Model::Weights& w = model_->weights();
  const std::int64_t d = w.config.hidden, vocab = w.head.rows();
  const std::int64_t m = static_cast<std::int64_t>(rows.size());
  float* x = ws_->gathered.Get(m * d);
  for (std::int64_t i = 0; i < m; ++i) {
    RmsNorm(hidden + rows[i] * d, d, w.final_norm.data(), w.rms_eps, 1, d, x + i * d, d, executor_);
  }
  float* logits = ws_->logits.Get(m * vocab);
  w.head.Multiply(x, d, m, logits, vocab, /*accumulate=*/false, executor_);
  return logits;
}

std::vector<float> ForwardPass::Surprisal(const float* hidden,
                                          std::span<const std::int32_t> targets) {
  const Model::Weights& w = model_->weights();
  const std::int64_t d = w.config.hidden, vocab = w.head.rows();
  const std::int64_t n = static_cast<std::int64_t>(targets.size());
  std::vector<float> result(targets.size());
  for (std::int64_t begin = 0; begin < n; begin += kSurprisalRows) {
    const std::int64_t m = std::min(kSurprisalRows, n - begin);
    float* x = ws_->gathered.Get(m * d);
    RmsNorm(hidden + begin * d, d, w.final_norm.data(), w.rms_eps, m, d, x, d, executor_);
    float* logits = ws_->logits.Get(m * vocab);
    w.head.Multiply(x, d, m, logits, vocab, /*accumulate=*/false, executor_);
    executor_.ParallelFor(m, 1, [&](std::int64_t b, std::int64_t e) {
      for (std::int64_t r = b; r < e; ++r) {
        const float* row = logits + r * vocab;
        result[begin + r] = LogSumExp(row, vocab) - row[targets[begin + r]];
      }
    });
  }
  return result;
}

}  // namespace baton
