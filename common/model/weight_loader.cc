#include "common/model/weight_loader.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/weight_store.h"
#include "common/weights/mapped_file.h"

namespace baton {
namespace {

// The first failure of a parallel loop.
class FirstError {
 public:
  void Add(absl::Status status) {
    if (status.ok()) return;
    MutexLock lock(mu_);
    if (status_.ok()) status_ = std::move(status);
  }
  absl::Status Get() {
    MutexLock lock(mu_);
    return status_;
  }

 private:
  Mutex mu_;
  absl::Status status_ GUARDED_BY(mu_);
};

void DoneReadingRows(const SourceTensor& tensor, std::int64_t begin, std::int64_t end) {
  const TensorView& view = *tensor.view;
  if (tensor.rope_permuted) {  // the rows of a head lie in another order
    begin -= begin % tensor.head_dim;
    end = std::min(view.shape[0], (end + tensor.head_dim - 1) / tensor.head_dim * tensor.head_dim);
  }
  const std::int64_t row_bytes = DTypeRowBytes(view.dtype, view.shape[1]);
  DoneReading(view.data + begin * row_bytes, static_cast<std::size_t>((end - begin) * row_bytes));
}

}  // namespace

WeightLoader::WeightLoader(const ModelSource& source, const ModelLoadOptions& options)
    : source_(source), options_(options) {
  for (const auto& [name, shape] : ExpectedTensors(source.config())) {
    // Model::Load has checked that the tensor is there, with this shape.
    const StoredDType stored = source.GetTensor(name).value().view->dtype;
    total_ += shape.size() == 1 ? shape[0] * static_cast<std::int64_t>(sizeof(float))
                                : shape[0] * PackedRowBytes(FormatOf(name, stored), shape[1]);
  }
}

WeightFormat WeightLoader::FormatOf(const std::string& name, StoredDType stored) const {
  const bool vocabulary = name == "model.embed_tokens.weight" || name == "lm_head.weight";
  return FormatFor(options_.weight_dtype, stored, vocabulary);
}

void WeightLoader::Matrix(std::vector<std::pair<std::string, std::int64_t>> parts,
                          std::int64_t cols, PackedMatrix& out) {
  Job job;
  job.cols = cols;
  job.out = &out;
  for (auto& [name, rows] : parts) {
    const SourceTensor tensor = source_.GetTensor(name).value();
    WillRead(tensor.view->data, tensor.view->nbytes);
    const WeightFormat format = FormatOf(name, tensor.view->dtype);
    const bool as_stored = FormatOfStored(tensor.view->dtype) == format;
    if (job.sections.empty() || job.sections.back().format != format ||
        job.as_stored.back() != as_stored) {
      job.sections.push_back({.rows = 0, .format = format});
      job.as_stored.push_back(as_stored);
    }
    job.sections.back().rows += rows;
    job.parts.push_back({std::move(name), rows, tensor, format,
                         PiecewiseHash(tensor.view->data, tensor.view->nbytes)});
  }
  open_.push_back(std::move(job));
}

absl::StatusOr<std::vector<float>> WeightLoader::Vector(const std::string& name,
                                                        std::int64_t size) {
  BATON_ASSIGN_OR_RETURN(const SourceTensor tensor, source_.GetTensor(name));
  PiecewiseHash hash(tensor.view->data, tensor.view->nbytes);
  for (std::size_t i = 0; i < hash.pieces(); ++i) hash.Hash(i);
  hashes_[name] = hash.Hex();
  std::vector<float> v(static_cast<std::size_t>(size));
  BATON_RETURN_IF_ERROR(source_.ReadTensorF32(name, {size}, v.data()));
  const auto bytes = static_cast<std::int64_t>(v.size() * sizeof(float));
  bytes_ += bytes;
  own_bytes_ += bytes;
  Done(bytes);
  return v;
}

absl::Status WeightLoader::EndBatch() {
  std::swap(waiting_, open_);
  absl::Status status = Pack(open_);
  open_.clear();
  return status;
}

absl::Status WeightLoader::Finish() {
  BATON_RETURN_IF_ERROR(EndBatch());
  return EndBatch();
}

absl::Status WeightLoader::Pack(Batch& batch) {
  Hash(batch);
  const std::vector<Job*> jobs = TakeShared(batch);
  BATON_RETURN_IF_ERROR(PackJobs(jobs));
  for (Job& job : batch) {
    if (job.out->bytes() == 0) *job.out = options_.store->Find(job.key).value();
    bytes_ += static_cast<std::int64_t>(job.out->bytes());
  }
  return absl::OkStatus();
}

void WeightLoader::Hash(Batch& batch) {
  std::vector<std::pair<Part*, std::size_t>> pieces;
  for (Job& job : batch) {
    for (Part& part : job.parts) {
      for (std::size_t i = 0; i < part.hash.pieces(); ++i) pieces.emplace_back(&part, i);
    }
  }
  options_.executor->ParallelFor(
      static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t p = begin; p < end; ++p) {
          const auto [part, i] = pieces[static_cast<std::size_t>(p)];
          part->hash.Hash(i);
          const std::string_view read = part->hash.piece(i);
          DoneReading(reinterpret_cast<const std::byte*>(read.data()), read.size());
        }
      });
  for (Job& job : batch) {
    for (Part& part : job.parts) hashes_[part.name] = part.hash.Hex();
    job.key = ContentKey(job);
  }
}

std::string WeightLoader::ContentKey(const Job& job) const {
  PartDigest digest;
  for (const Part& part : job.parts) {
    digest.Add(FormatName(part.format));
    digest.Add(DTypeName(part.tensor.view->dtype));
    digest.Add(ShapeString(part.tensor.view->shape));
    digest.Add(absl::StrCat(part.tensor.rope_permuted ? part.tensor.head_dim : 0));
    digest.Add(hashes_.at(part.name));
  }
  return digest.Hex();
}

std::vector<WeightLoader::Job*> WeightLoader::TakeShared(Batch& batch) {
  std::vector<Job*> jobs;
  std::set<std::string> keys;
  for (Job& job : batch) {
    const bool again = options_.store != nullptr && !keys.insert(job.key).second;
    if (options_.store != nullptr && !again) {
      if (auto shared = options_.store->Find(job.key)) *job.out = *std::move(shared);
    }
    if (again || job.out->bytes() > 0) {
      for (const Part& part : job.parts) {
        DoneReadingRows(part.tensor, 0, part.rows);
        Done(part.rows * PackedRowBytes(part.format, job.cols));
      }
    } else {
      jobs.push_back(&job);
    }
  }
  return jobs;
}

absl::Status WeightLoader::PackJobs(const std::vector<Job*>& jobs) {
  std::vector<PackedMatrixBuilder> builders;
  std::vector<std::int64_t> first;  // panel of each job among all
  std::int64_t panels = 0;
  for (const Job* job : jobs) {
    builders.emplace_back(job->sections, job->cols);
    first.push_back(panels);
    panels += builders.back().panels();
  }
  FirstError error;
  options_.executor->ParallelFor(panels, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      const auto i = static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), p) - 1 -
                                              first.begin());
      error.Add(PackPanel(*jobs[i], builders[i], p - first[i]));
    }
  });
  BATON_RETURN_IF_ERROR(error.Get());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    PackedMatrix packed = std::move(builders[i]).Finish();
    own_bytes_ += static_cast<std::int64_t>(packed.bytes());
    *jobs[i]->out =
        options_.store == nullptr ? packed : options_.store->Add(jobs[i]->key, std::move(packed));
  }
  return absl::OkStatus();
}

absl::Status WeightLoader::PackPanel(const Job& job, PackedMatrixBuilder& builder,
                                     std::int64_t panel) {
  const std::size_t section = builder.SectionOf(panel);
  absl::Status status;
  std::int64_t rows = 0;
  if (job.as_stored[section]) {
    builder.PackStored(panel, panel + 1, [&](std::int64_t row, std::int64_t count, std::byte* dst) {
      CopyRows(job, row, count, dst);
      rows = count;
    });
  } else {
    builder.Pack(panel, panel + 1, [&](std::int64_t row, std::int64_t count, float* dst) {
      status = ReadRows(job, row, count, dst);
      rows = count;
    });
  }
  Done(rows * PackedRowBytes(job.sections[section].format, job.cols));
  return status;
}

absl::Status WeightLoader::ReadRows(const Job& job, std::int64_t begin, std::int64_t count,
                                    float* dst) const {
  std::int64_t part_begin = 0;
  for (const Part& part : job.parts) {
    const std::int64_t b = std::max(begin, part_begin);
    const std::int64_t e = std::min(begin + count, part_begin + part.rows);
    if (b < e) {
      BATON_RETURN_IF_ERROR(
          source_.ReadRowsF32(part.name, b - part_begin, e - b, dst + (b - begin) * job.cols));
      DoneReadingRows(part.tensor, b - part_begin, e - part_begin);
    }
    part_begin += part.rows;
  }
  return absl::OkStatus();
}

void WeightLoader::CopyRows(const Job& job, std::int64_t begin, std::int64_t count,
                            std::byte* dst) {
  std::int64_t part_begin = 0;
  for (const Part& part : job.parts) {
    const std::int64_t b = std::max(begin, part_begin) - part_begin;
    const std::int64_t e = std::min(begin + count, part_begin + part.rows) - part_begin;
    const auto row_bytes =
        static_cast<std::size_t>(DTypeRowBytes(part.tensor.view->dtype, job.cols));
    for (std::int64_t row = b; row < e; ++row, dst += row_bytes) {
      const auto at = static_cast<std::size_t>(part.tensor.StoredRow(row)) * row_bytes;
      std::memcpy(dst, part.tensor.view->data + at, row_bytes);
    }
    if (b < e) DoneReadingRows(part.tensor, b, e);
    part_begin += part.rows;
  }
}

void WeightLoader::Done(std::int64_t bytes) {
  if (!options_.progress) return;
  MutexLock lock(progress_mu_);
  done_ += bytes;
  options_.progress(done_, total_);
}

}  // namespace baton
