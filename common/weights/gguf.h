// The GGUF container, versions 2 and 3, little-endian. Every count, length and offset is checked
// against the file before it is used; nothing is allocated from a number the file cannot back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/weights/mapped_file.h"
#include "common/weights/tensor_view.h"

namespace baton {

enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Typed getters return NotFound for an absent key and InvalidArgument for another type, naming file
// and key. Strings are views into the mapping. Immutable, usable from any thread.
class GgufFile {
 public:
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  uint32_t version() const { return version_; }

  bool Has(std::string_view key) const;
  std::vector<std::string_view> Keys() const;  // in file order
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  // Any integer type that fits int64.
  absl::StatusOr<int64_t> GetInt(std::string_view key) const;
  // float32 or float64.
  absl::StatusOr<double> GetFloat(std::string_view key) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::vector<std::string_view>> GetStringArray(std::string_view key) const;
  absl::StatusOr<std::vector<bool>> GetBoolArray(std::string_view key) const;
  // Array of any integer type.
  absl::StatusOr<std::vector<int64_t>> GetIntArray(std::string_view key) const;
  absl::StatusOr<std::vector<float>> GetFloatArray(std::string_view key) const;
  // Array of any type.
  absl::StatusOr<int64_t> GetArrayLength(std::string_view key) const;

  const std::vector<TensorView>& tensors() const { return tensors_; }
  // Null when there is no such tensor.
  const TensorView* Find(std::string_view name) const;

 private:
  friend class GgufParser;

  struct Value {
    GgufType type = GgufType::kUint8;
    GgufType element = GgufType::kUint8;  // of an array
    uint64_t count = 0;                   // elements of an array, bytes of a string
    const std::byte* data = nullptr;      // the value, the first element, the string's bytes
  };

  explicit GgufFile(MappedFile file) : file_(std::move(file)) {}
  absl::StatusOr<const Value*> Get(std::string_view key, std::string_view wanted) const;
  absl::StatusOr<const Value*> GetArray(std::string_view key, std::string_view wanted) const;

  const MappedFile file_;
  uint32_t version_ = 0;
  std::vector<std::string_view> keys_;
  std::unordered_map<std::string_view, Value> values_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

}  // namespace baton
