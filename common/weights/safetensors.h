// The safetensors container: every length, offset, shape and name is checked before a tensor is
// visible.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/weights/mapped_file.h"
#include "common/weights/tensor_view.h"

namespace baton {

inline constexpr size_t kMaxSafetensorsHeader = 100'000'000;  // bytes; the format's own limit
inline constexpr size_t kMaxTensorRank = 8;

class SafetensorsFile {
 public:
  // Errors name the file, the tensor and the field. Offsets must cover the data exactly: no holes,
  // no overlaps, nothing left over.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  // In the order of the data. Valid as long as this.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // Null when there is no such tensor.
  const TensorView* Find(std::string_view name) const;
  // The strings of the header's `__metadata__`.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}

  const MappedFile file_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

// One or several safetensors files seen as one set of tensors.
class SafetensorsSet {
 public:
  struct Entry {
    const TensorView* view;
    const std::string* file;  // path, for messages
  };

  // `dir` holds model.safetensors.index.json, or else model.safetensors. With an index only the
  // files it names are read; all missing files and tensors, and what is wrong with the files that
  // are there, are listed in one error. Names that leave the folder are refused.
  static absl::StatusOr<std::unique_ptr<SafetensorsSet>> OpenDirectory(const std::string& dir);

  const std::unordered_map<std::string, Entry>& tensors() const { return tensors_; }

 private:
  SafetensorsSet() = default;
  absl::Status AddShards(const std::string& dir, const std::string& index_path);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string, Entry> tensors_;
};

}  // namespace baton
