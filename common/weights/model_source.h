// One view of a model's files, whether a GGUF file or a Hugging Face folder.
//
//   BATON_ASSIGN_OR_RETURN(auto source, ModelSource::Open("/models/SmolLM2.gguf"));
//   std::vector<float> w(rows * cols);
//   BATON_RETURN_IF_ERROR(source->ReadTensorF32("model.norm.weight", {hidden}, w.data()));
//
// Tensors go by their Hugging Face names. Open has already checked that each tensor of the config
// is present with the right shape and nothing else is. Immutable, usable from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/weights/gguf.h"
#include "common/weights/model_config.h"
#include "common/weights/safetensors.h"
#include "common/weights/tensor_view.h"

namespace baton {

struct SourceTensor {
  const TensorView* view = nullptr;
  const std::string* file = nullptr;  // path, for messages
  // True for Q and K of a llama GGUF: within each head, stored row 2i is row i of the Hugging Face
  // (half-split) order and stored row 2i+1 is row i + head_dim/2.
  bool rope_permuted = false;
  int64_t head_dim = 0;  // rows of a head, set when rope_permuted

  // Row of the file that holds `row` of the Hugging Face order.
  int64_t StoredRow(int64_t row) const {
    if (!rope_permuted) return row;
    const int64_t in_head = row % head_dim;
    const int64_t half = head_dim / 2;
    return row - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
  }
};

// By name of the tensor: PiecewiseHash of its bytes.
using TensorHashes = std::unordered_map<std::string, std::string>;

class ModelSource {
 public:
  enum class Format { kGguf, kHuggingFace };

  // `path`: a .gguf file or a folder with config.json and safetensors files. Errors name file, key
  // or tensor, and what was expected.
  static absl::StatusOr<std::unique_ptr<ModelSource>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  Format format() const { return format_; }
  const ModelConfig& config() const { return config_; }

  // Hugging Face names, sorted. A tied head is not a tensor of its own.
  const std::vector<std::string>& TensorNames() const { return names_; }
  bool HasTensor(std::string_view name) const;
  // Errors: NotFound naming file and tensor.
  absl::StatusOr<SourceTensor> GetTensor(std::string_view name) const;

  // The tensor in fp32 and Hugging Face row order, into `dst` [product of shape]. Errors name file,
  // tensor, expected and given shape, or a dtype that cannot be read.
  absl::Status ReadTensorF32(std::string_view name, absl::Span<const int64_t> expected_shape,
                             float* dst) const;
  // Rows [begin, begin + count) of a matrix, into `dst` [count, columns]; any thread, for parallel
  // loading. Errors: OutOfRange, or as ReadTensorF32.
  absl::Status ReadRowsF32(std::string_view name, int64_t begin, int64_t count, float* dst) const;

  // tokenizer.json and tokenizer_config.json of a Hugging Face folder; empty when absent. For a
  // GGUF file, give gguf() to ReadGgufVocab (common/tokenizer/gguf_vocab.h).
  const std::string& tokenizer_json() const { return tokenizer_json_; }
  const std::string& tokenizer_config_json() const { return tokenizer_config_json_; }
  // Without tokenizer.json: the bytes of tokenizer.model or, failing that, of *.tiktoken.
  const std::string& tokenizer_vocabulary() const { return tokenizer_vocabulary_; }
  // Null for a Hugging Face folder.
  const GgufFile* gguf() const { return gguf_.get(); }

  // Text of the chat template and where it was found; nullopt when the model has none.
  const std::optional<std::string>& chat_template() const { return chat_template_; }
  const std::string& chat_template_origin() const { return chat_template_origin_; }

  // 32 hex digits over names, dtypes, shapes and bytes of all tensors. Computed on first use with
  // up to `threads` threads (a read of the whole file, but for tensors whose hash is `known`), then
  // remembered.
  std::string WeightsDigest(int threads = 2, const TensorHashes& known = {}) const;

 private:
  ModelSource() = default;
  absl::Status OpenGguf();
  absl::Status OpenHuggingFace();
  absl::Status ReadHuggingFaceTexts();
  absl::Status ResolveTiedHead();
  absl::Status CheckTensors();

  std::string path_;
  Format format_ = Format::kGguf;
  ModelConfig config_;
  std::unique_ptr<GgufFile> gguf_;
  std::unique_ptr<SafetensorsSet> safetensors_;
  std::unordered_map<std::string, SourceTensor> tensors_;
  std::vector<std::string> names_;
  std::string tokenizer_json_;
  std::string tokenizer_config_json_;
  std::string tokenizer_vocabulary_;
  std::optional<std::string> chat_template_;
  std::string chat_template_origin_;

  mutable Mutex digest_mu_;
  mutable std::string digest_ GUARDED_BY(digest_mu_);
};

}  // namespace baton
