// A decoder-only transformer: immutable weights (shared by any number of threads) and a forward
// pass (owned by one thread).
//
//   BATON_ASSIGN_OR_RETURN(auto model, Model::Load(source, options));
//   ForwardPass pass(model, adapters, executor);
//   float* h = pass.Embed(token_ids);                    // [n, hidden]
//   pass.RunLayers(0, model->config().layers, h, batch, nullptr);
//   const float* logits = pass.Logits(h, last_rows);     // [m, vocab]
//
// RunLayers accepts any range [i, j) and any hidden states, so a pass can be cut, restarted at a
// layer from cached states, or fed with states from elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/kv_view.h"
#include "common/model/weight_dtype.h"
#include "common/weights/lora.h"
#include "common/weights/model_config.h"
#include "common/weights/model_source.h"
#include "kernels/executor.h"
#include "kernels/packed_matrix.h"

namespace baton {

class WeightStore;

struct ModelLoadOptions {
  WeightDType weight_dtype = WeightDType::kF32;
  Executor* executor = nullptr;  // required; used until Load returns
  // Called with (bytes packed, bytes in all), often, from any thread of the executor, one call at a
  // time; may be null.
  std::function<void(std::int64_t, std::int64_t)> progress = nullptr;
  // Matrices that a model loaded with the same store holds are shared; null: none are.
  WeightStore* store = nullptr;
};

class Model {
 public:
  // Checks every tensor's shape against the config before any is read. INVALID_ARGUMENT names
  // the file, the tensor, the expected and the given shape.
  static absl::StatusOr<std::shared_ptr<const Model>> Load(const ModelSource& source,
                                                           const ModelLoadOptions& options);
  ~Model();

  const ModelConfig& config() const;
  WeightDType weight_dtype() const;
  // Digest of the weights *as served*: contents and what packing rounded them to. kFile rounds
  // nothing and has the digest of kF32: both give the same bits.
  const std::string& served_digest() const;
  // Digest of the weights as the files have them, whatever they are served as.
  const std::string& content_digest() const;
  std::size_t weight_bytes() const;
  // Of these, what no model loaded earlier with the same store held.
  std::size_t own_weight_bytes() const;

  struct Weights;  // layers' packed matrices; defined in model_weights.h
  const Weights& weights() const;

 private:
  explicit Model(std::unique_ptr<Weights> weights);
  std::unique_ptr<Weights> weights_;
};

// LoRA adapters packed for per-row use over one model. Index i is the i-th added. Adding is for
// the owner, before or between forward passes; reading is free for any thread.
class AdapterSet {
 public:
  explicit AdapterSet(std::shared_ptr<const Model> model);
  ~AdapterSet();
  // Returns the adapter's index. INVALID_ARGUMENT naming layer and module when its shapes do not
  // fit the model.
  absl::StatusOr<int> Add(const LoraAdapter& adapter, Executor& executor);
  int size() const;
  const std::string& digest(int index) const;

  struct Packed;  // defined in model_weights.h
  const Packed& packed(int index) const;

 private:
  std::shared_ptr<const Model> model_;
  std::vector<std::unique_ptr<Packed>> adapters_;
};

inline constexpr int kNoAdapter = -1;

// Rows [row_begin, row_end) of a batch belong to one sequence. Slices are in row order, without
// gaps, each with a view of its own. Neighbours with the same adapter share its matrix products,
// so sort a batch by adapter where the order is free.
struct SequenceSlice {
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  KvView* view = nullptr;
  int adapter = kNoAdapter;
};

struct ForwardBatch {
  std::span<const std::int32_t> positions;  // [n]
  std::span<const SequenceSlice> sequences;
};

// What one layer saw, for every row of the batch. Valid only during the call.
struct LayerCapture {
  int layer = 0;
  std::int64_t rows = 0;
  const float* h_in = nullptr;  // [rows, hidden]: attention input normalised, before gamma
  const float* rms = nullptr;   // [rows]: what h_in was divided by, so h_in * rms is the stream
  const float* k_pre_rope = nullptr;  // [rows, ld_kv]: after bias and k-norm, before RoPE
  const float* v = nullptr;           // [rows, ld_kv]
  std::int64_t ld_kv = 0;
};

class CaptureHook {
 public:
  virtual ~CaptureHook() = default;
  // True if h_in and rms are wanted for this layer (they cost a pass over the rows).
  virtual bool WantsInput(int /*layer*/) const { return false; }
  // Called after the layer's K and V were appended to the views, before attention runs.
  virtual void OnKv(const LayerCapture& /*capture*/) {}
};

// Batch invariant: what is computed for a row has the same bits whatever else is in the batch and
// however a sequence is cut into chunks. Allocates only when a batch is larger than any before.
class ForwardPass {
 public:
  // `adapters` may be null; both must outlive the pass.
  ForwardPass(std::shared_ptr<const Model> model, const AdapterSet* adapters, Executor& executor);
  ~ForwardPass();

  // Token embeddings [n, hidden], in a buffer of the pass (valid until the next Embed). Token ids
  // are in [0, vocab): checked by whoever admits a request.
  float* Embed(std::span<const std::int32_t> tokens);
  // Runs layers [begin, end) in place on hidden [n, hidden].
  void RunLayers(int begin, int end, float* hidden, const ForwardBatch& batch, CaptureHook* hook);
  // Final norm and head for the named rows of hidden: [rows.size(), vocab], valid until the next
  // call.
  const float* Logits(const float* hidden, std::span<const std::int32_t> rows);
  // -log p(targets[i]) from hidden row i, computed in chunks of rows, never a full logits matrix.
  std::vector<float> Surprisal(const float* hidden, std::span<const std::int32_t> targets);

 private:
  struct Workspace;
  void RunAttention(int layer, float* hidden, const ForwardBatch& batch, CaptureHook* hook);
  void Capture(int layer, const float* hidden, const float* k, const float* v, std::int64_t n,
               CaptureHook* hook);
  void Attend(int layer, const float* q, float* out, const ForwardBatch& batch);
  void RunMlp(int layer, float* hidden, std::int64_t n);

  std::shared_ptr<const Model> model_;
  const AdapterSet* adapters_;
  Executor& executor_;
  std::unique_ptr<Workspace> ws_;
};

}  // namespace baton
