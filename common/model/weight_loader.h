// Reads a model's tensors and packs them: the part of Model::Load that touches bytes.
//
//   WeightLoader loader(source, options);
//   for each layer: loader.Matrix(...), loader.Vector(...), loader.EndBatch();
//   BATON_RETURN_IF_ERROR(loader.Finish());
//
// Matrices are packed a batch at a time, over all its tensors and ranges of their rows, on all
// threads of the executor. While one batch is packed the system reads the next from the disk. What
// was read is given back at once, so that beside the packed weights only some rows per thread
// exist. One thread drives it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/model/model.h"
#include "common/weights/digest.h"
#include "common/weights/model_source.h"
#include "kernels/packed_matrix.h"

namespace baton {

class WeightLoader {
 public:
  // Both outlive it.
  WeightLoader(const ModelSource& source, const ModelLoadOptions& options);

  // The matrices `parts` [rows_i, cols], one below the other, will be in `out` when Finish has
  // returned; `out` stays where it is until then.
  void Matrix(std::vector<std::pair<std::string, std::int64_t>> parts, std::int64_t cols,
              PackedMatrix& out);
  // Norms and biases stay fp32 and are not shared.
  absl::StatusOr<std::vector<float>> Vector(const std::string& name, std::int64_t size);
  // What was asked for since the last call is one batch.
  absl::Status EndBatch();
  absl::Status Finish();

  std::int64_t bytes() const { return bytes_; }           // of the model
  std::int64_t own_bytes() const { return own_bytes_; }   // not held by an earlier one
  const TensorHashes& hashes() const { return hashes_; }  // of everything asked for

 private:
  struct Part {
    std::string name;
    std::int64_t rows = 0;
    SourceTensor tensor;
    WeightFormat format = WeightFormat::kF32;
    PiecewiseHash hash;
  };
  struct Job {
    std::vector<Part> parts;
    std::int64_t cols = 0;
    std::vector<PackedMatrix::Section> sections;  // neighbouring parts of one format
    std::vector<bool> as_stored;                  // of each section: no rounding, blocks are copied
    PackedMatrix* out = nullptr;
    std::string key;  // of the content, when hashed
  };
  using Batch = std::vector<Job>;

  absl::Status Pack(Batch& batch);
  void Hash(Batch& batch);
  // Fills what the store has; the others, without repetitions.
  std::vector<Job*> TakeShared(Batch& batch);
  absl::Status PackJobs(const std::vector<Job*>& jobs);
  absl::Status PackPanel(const Job& job, PackedMatrixBuilder& builder, std::int64_t panel);
  WeightFormat FormatOf(const std::string& name, StoredDType stored) const;
  // Rows [begin, begin + count) of the matrix, as fp32 or as stored.
  absl::Status ReadRows(const Job& job, std::int64_t begin, std::int64_t count, float* dst) const;
  static void CopyRows(const Job& job, std::int64_t begin, std::int64_t count, std::byte* dst);
  std::string ContentKey(const Job& job) const;
  void Done(std::int64_t bytes) EXCLUDES(progress_mu_);

  const ModelSource& source_;
  const ModelLoadOptions& options_;
  Batch open_;     // not ended yet
  Batch waiting_;  // ended; packed when the next one has ended
  TensorHashes hashes_;
  std::int64_t bytes_ = 0;
  std::int64_t own_bytes_ = 0;
  std::int64_t total_ = 0;
  Mutex progress_mu_;
  std::int64_t done_ GUARDED_BY(progress_mu_) = 0;
};

}  // namespace baton
