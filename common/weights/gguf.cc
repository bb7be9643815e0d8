#include "common/weights/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/base/utf8.h"

namespace baton {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 16;
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxNameBytes = 64;
constexpr uint32_t kMaxDims = 4;
// The smallest a metadata entry and a tensor description can be: bounds for the counts.
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

template <typename T>
T Load(const std::byte* src) {
  T value;
  std::memcpy(&value, src, sizeof(T));
  return value;
}

// Bytes of a scalar; 0 for strings, arrays and unknown types.
uint64_t ScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    default:
      return 0;
  }
}

struct GgmlType {
  uint32_t id;
  std::string_view name;
  std::optional<StoredDType> dtype;  // nullopt: known by name only
};

constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", StoredDType::kF32},
    {1, "F16", StoredDType::kF16},
    {2, "Q4_0", StoredDType::kQ4_0},
    {3, "Q4_1", StoredDType::kQ4_1},
    {6, "Q5_0", StoredDType::kQ5_0},
    {7, "Q5_1", StoredDType::kQ5_1},
    {8, "Q8_0", StoredDType::kQ8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", {}},
    {11, "Q3_K", {}},
    {12, "Q4_K", StoredDType::kQ4_K},
    {13, "Q5_K", StoredDType::kQ5_K},
    {14, "Q6_K", StoredDType::kQ6_K},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", {}},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", {}},
    {24, "I8", StoredDType::kI8},
    {25, "I16", StoredDType::kI16},
    {26, "I32", StoredDType::kI32},
    {27, "I64", StoredDType::kI64},
    {28, "F64", StoredDType::kF64},
    {29, "IQ1_M", {}},
    {30, "BF16", StoredDType::kBF16},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {39, "MXFP4", {}},
};

std::optional<int64_t> IntegerAt(GgufType type, const std::byte* data) {
  switch (type) {
    case GgufType::kUint8:
      return Load<uint8_t>(data);
    case GgufType::kInt8:
      return Load<int8_t>(data);
    case GgufType::kUint16:
      return Load<uint16_t>(data);
    case GgufType::kInt16:
      return Load<int16_t>(data);
    case GgufType::kUint32:
      return Load<uint32_t>(data);
    case GgufType::kInt32:
      return Load<int32_t>(data);
    case GgufType::kInt64:
      return Load<int64_t>(data);
    case GgufType::kUint64: {
      const auto value = Load<uint64_t>(data);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::string_view StringAt(const std::byte* data, uint64_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace

// Walks the file once, front to back. Every read goes through Take.
class GgufParser {
 public:
  explicit GgufParser(GgufFile* file)
      : file_(file), begin_(file->file_.data()), size_(file->file_.size()) {}

  absl::Status Parse() {
    uint64_t tensors = 0;
    uint64_t entries = 0;
    BATON_RETURN_IF_ERROR(ReadHeader(&tensors, &entries));
    for (uint64_t i = 0; i < entries; ++i) BATON_RETURN_IF_ERROR(ReadEntry());
    BATON_RETURN_IF_ERROR(ReadAlignment());
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < tensors; ++i) BATON_RETURN_IF_ERROR(ReadTensor(&offsets));
    return PlaceTensors(offsets);
  }

 private:
  uint64_t Left() const { return size_ - at_; }

  absl::StatusOr<const std::byte*> Take(uint64_t bytes, std::string_view what) {
    if (bytes > Left()) {
      return absl::InvalidArgumentError(
          Cat(what, " at byte ", at_, " needs ", bytes, " bytes, the file has ", Left(), " more"));
    }
    const std::byte* data = begin_ + at_;
    at_ += bytes;
    return data;
  }

  template <typename T>
  absl::StatusOr<T> Read(std::string_view what) {
    BATON_ASSIGN_OR_RETURN(const std::byte* data, Take(sizeof(T), what));
    return Load<T>(data);
  }

  absl::StatusOr<std::string_view> ReadString(std::string_view what, uint64_t max_bytes) {
    BATON_ASSIGN_OR_RETURN(const uint64_t bytes, Read<uint64_t>(what));
    if (bytes > max_bytes) {
      return absl::InvalidArgumentError(
          Cat(what, " of ", bytes, " bytes, at most ", max_bytes, " allowed"));
    }
    BATON_ASSIGN_OR_RETURN(const std::byte* data, Take(bytes, what));
    return StringAt(data, bytes);
  }

  absl::Status ReadHeader(uint64_t* tensors, uint64_t* entries) {
    BATON_ASSIGN_OR_RETURN(const std::byte* magic, Take(kMagic.size(), "magic"));
    if (StringAt(magic, kMagic.size()) != kMagic) {
      return absl::InvalidArgumentError("not a GGUF file (no magic 'GGUF')");
    }
    BATON_ASSIGN_OR_RETURN(file_->version_, Read<uint32_t>("version"));
    if (file_->version_ != 2 && file_->version_ != 3) {
      const bool swapped = (file_->version_ & 0xFFFF) == 0 && file_->version_ != 0;
      return absl::UnimplementedError(
          swapped ? "big-endian GGUF is not supported"
                  : Cat("GGUF version ", file_->version_, " is not supported (2 and 3 are)"));
    }
    BATON_ASSIGN_OR_RETURN(*tensors, Read<uint64_t>("tensor count"));
    BATON_ASSIGN_OR_RETURN(*entries, Read<uint64_t>("metadata count"));
    if (*entries > Left() / kMinEntryBytes || *tensors > Left() / kMinTensorBytes) {
      return absl::InvalidArgumentError(Cat(*entries, " metadata entries and ", *tensors,
                                            " tensors do not fit a file of ", size_, " bytes"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadEntry() {
    BATON_ASSIGN_OR_RETURN(const std::string_view key, ReadString("metadata key", kMaxKeyBytes));
    if (key.empty() || !IsValidUtf8(key)) {
      return absl::InvalidArgumentError(
          Cat("metadata key before byte ", at_, " is empty or not UTF-8"));
    }
    BATON_ASSIGN_OR_RETURN(const uint32_t type, Read<uint32_t>(Cat("type of '", key, "'")));
    GgufFile::Value value;
    value.type = static_cast<GgufType>(type);
    if (absl::Status status = ReadValue(&value); !status.ok()) {
      return absl::Status(status.code(), Cat("'", key, "': ", StdView(status.message())));
    }
    if (!file_->values_.emplace(key, value).second) {
      return absl::InvalidArgumentError(Cat("metadata key '", key, "' is given twice"));
    }
    file_->keys_.push_back(key);
    return absl::OkStatus();
  }

  absl::Status ReadValue(GgufFile::Value* value) {
    if (value->type == GgufType::kArray) return ReadArray(value);
    if (value->type == GgufType::kString) {
      BATON_ASSIGN_OR_RETURN(const std::string_view text, ReadString("string", size_));
      value->data = reinterpret_cast<const std::byte*>(text.data());
      value->count = text.size();
      return absl::OkStatus();
    }
    const uint64_t bytes = ScalarBytes(value->type);
    if (bytes == 0) {
      return absl::InvalidArgumentError(
          Cat("unknown value type ", static_cast<uint32_t>(value->type)));
    }
    BATON_ASSIGN_OR_RETURN(value->data, Take(bytes, "value"));
    if (value->type == GgufType::kBool && Load<uint8_t>(value->data) > 1) {
      return absl::InvalidArgumentError("bool is neither 0 nor 1");
    }
    return absl::OkStatus();
  }

  absl::Status ReadArray(GgufFile::Value* value) {
    BATON_ASSIGN_OR_RETURN(const uint32_t element, Read<uint32_t>("array type"));
    BATON_ASSIGN_OR_RETURN(value->count, Read<uint64_t>("array length"));
    value->element = static_cast<GgufType>(element);
    value->data = begin_ + at_;
    if (value->element == GgufType::kString) {
      if (value->count > Left() / sizeof(uint64_t)) {
        return absl::InvalidArgumentError(
            Cat("array of ", value->count, " strings does not fit the file"));
      }
      for (uint64_t i = 0; i < value->count; ++i) {
        BATON_RETURN_IF_ERROR(ReadString("array string", size_).status());
      }
      return absl::OkStatus();
    }
    const uint64_t bytes = ScalarBytes(value->element);
    if (bytes == 0) {
      return absl::InvalidArgumentError(value->element == GgufType::kArray
                                            ? std::string("arrays of arrays are not supported")
                                            : Cat("unknown array type ", element));
    }
    if (value->count > Left() / bytes) {
      return absl::InvalidArgumentError(
          Cat("array of ", value->count, " elements does not fit the file"));
    }
    BATON_RETURN_IF_ERROR(Take(value->count * bytes, "array").status());
    if (value->element == GgufType::kBool) {
      for (uint64_t i = 0; i < value->count; ++i) {
        if (Load<uint8_t>(value->data + i) > 1) {
          return absl::InvalidArgumentError("bool is neither 0 nor 1");
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadAlignment() {
    const auto it = file_->values_.find("general.alignment");
    if (it == file_->values_.end()) return absl::OkStatus();
    if (it->second.type != GgufType::kUint32) {
      return absl::InvalidArgumentError("'general.alignment': not a uint32");
    }
    alignment_ = Load<uint32_t>(it->second.data);
    if (!std::has_single_bit(alignment_) || alignment_ > kMaxAlignment) {
      return absl::InvalidArgumentError(
          Cat("'general.alignment': ", alignment_, " is not a power of two up to ", kMaxAlignment));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTensor(std::vector<uint64_t>* offsets) {
    BATON_ASSIGN_OR_RETURN(const std::string_view name, ReadString("tensor name", kMaxNameBytes));
    if (!IsValidUtf8(name)) {
      return absl::InvalidArgumentError(Cat("tensor name before byte ", at_, " is not UTF-8"));
    }
    if (absl::Status status = ReadTensorBody(name, offsets); !status.ok()) {
      return absl::Status(status.code(), Cat("tensor '", name, "': ", StdView(status.message())));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTensorBody(std::string_view name, std::vector<uint64_t>* offsets) {
    TensorView view;
    view.name = std::string(name);
    BATON_ASSIGN_OR_RETURN(const uint32_t dims, Read<uint32_t>("dimensions"));
    if (dims < 1 || dims > kMaxDims) {
      return absl::InvalidArgumentError(Cat(dims, " dimensions, must be 1 to ", kMaxDims));
    }
    view.shape.resize(dims);
    for (uint32_t i = 0; i < dims; ++i) {
      BATON_ASSIGN_OR_RETURN(const int64_t dim, Read<int64_t>("dimension"));
      if (dim < 1) return absl::InvalidArgumentError(Cat("dimension ", i, " is ", dim));
      view.shape[dims - 1 - i] = dim;  // GGUF lists the innermost first
    }
    BATON_ASSIGN_OR_RETURN(const uint32_t type, Read<uint32_t>("type"));
    const auto* known = std::find_if(std::begin(kGgmlTypes), std::end(kGgmlTypes),
                                     [&](const GgmlType& t) { return t.id == type; });
    if (known == std::end(kGgmlTypes) || !known->dtype.has_value()) {
      return absl::UnimplementedError(known == std::end(kGgmlTypes)
                                          ? Cat("unknown type ", type)
                                          : Cat("type ", known->name, " is not supported"));
    }
    view.dtype = *known->dtype;
    BATON_ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(view.dtype, view.shape));
    view.nbytes = static_cast<size_t>(bytes);
    BATON_ASSIGN_OR_RETURN(const uint64_t offset, Read<uint64_t>("offset"));
    if (offset % alignment_ != 0) {
      return absl::InvalidArgumentError(
          Cat("offset ", offset, " is not a multiple of the alignment ", alignment_));
    }
    offsets->push_back(offset);
    file_->tensors_.push_back(std::move(view));
    return absl::OkStatus();
  }

  absl::Status PlaceTensors(const std::vector<uint64_t>& offsets) {
    if (offsets.empty()) return absl::OkStatus();
    const uint64_t start = (at_ + alignment_ - 1) / alignment_ * alignment_;
    if (start > size_) return absl::InvalidArgumentError("the file ends before the tensor data");
    const uint64_t data_size = size_ - start;
    std::vector<size_t> order(offsets.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
      TensorView& view = file_->tensors_[i];
      if (offsets[i] > data_size || view.nbytes > data_size - offsets[i]) {
        return absl::InvalidArgumentError(Cat("tensor '", view.name, "': ", view.nbytes,
                                              " bytes at offset ", offsets[i], " lie beyond the ",
                                              data_size, " bytes of data"));
      }
      view.data = begin_ + start + offsets[i];
    }
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return offsets[a] < offsets[b]; });
    for (size_t i = 1; i < order.size(); ++i) {
      const TensorView& before = file_->tensors_[order[i - 1]];
      if (offsets[order[i - 1]] + before.nbytes > offsets[order[i]]) {
        return absl::InvalidArgumentError(
            Cat("tensors '", before.name, "' and '", file_->tensors_[order[i]].name, "' overlap"));
      }
    }
    for (size_t i = 0; i < file_->tensors_.size(); ++i) {
      if (!file_->by_name_.emplace(file_->tensors_[i].name, i).second) {
        return absl::InvalidArgumentError(
            Cat("two tensors have the name '", file_->tensors_[i].name, "'"));
      }
    }
    return absl::OkStatus();
  }

  GgufFile* const file_;
  const std::byte* const begin_;
  const uint64_t size_;
  uint64_t at_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
};

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  std::unique_ptr<GgufFile> file(new GgufFile(std::move(mapped)));
  if (absl::Status status = GgufParser(file.get()).Parse(); !status.ok()) {
    return absl::Status(status.code(), Cat(path, ": ", StdView(status.message())));
  }
  return file;
}

bool GgufFile::Has(std::string_view key) const { return values_.contains(key); }

std::vector<std::string_view> GgufFile::Keys() const { return keys_; }

absl::StatusOr<const GgufFile::Value*> GgufFile::Get(std::string_view key,
                                                     std::string_view wanted) const {
  const auto it = values_.find(key);
  if (it == values_.end()) {
    return absl::NotFoundError(Cat(path(), ": no metadata key '", key, "' (", wanted, ")"));
  }
  return &it->second;
}

namespace {

absl::Status WrongType(const std::string& path, std::string_view key, std::string_view wanted) {
  return absl::InvalidArgumentError(Cat(path, ": metadata key '", key, "' is not ", wanted));
}

}  // namespace

absl::StatusOr<std::string_view> GgufFile::GetString(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Value* value, Get(key, "a string"));
  if (value->type != GgufType::kString) return WrongType(path(), key, "a string");
  return StringAt(value->data, value->count);
}

absl::StatusOr<int64_t> GgufFile::GetInt(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Value* value, Get(key, "an integer"));
  const auto number = IntegerAt(value->type, value->data);
  if (!number.has_value()) return WrongType(path(), key, "a 64-bit integer");
  return *number;
}

absl::StatusOr<double> GgufFile::GetFloat(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Value* value, Get(key, "a float"));
  if (value->type == GgufType::kFloat32) return Load<float>(value->data);
  if (value->type == GgufType::kFloat64) return Load<double>(value->data);
  return WrongType(path(), key, "a float");
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Value* value, Get(key, "a bool"));
  if (value->type != GgufType::kBool) return WrongType(path(), key, "a bool");
  return Load<uint8_t>(value->data) != 0;
}

absl::StatusOr<const GgufFile::Value*> GgufFile::GetArray(std::string_view key,
                                                          std::string_view wanted) const {
  BATON_ASSIGN_OR_RETURN(const Value* value, Get(key, wanted));
  if (value->type != GgufType::kArray) return WrongType(path(), key, wanted);
  return value;
}

absl::StatusOr<std::vector<std::string_view>> GgufFile::GetStringArray(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Value* value, GetArray(key, "an array of strings"));
  if (value->element != GgufType::kString) return WrongType(path(), key, "an array of strings");
  std::vector<std::string_view> strings;
  strings.reserve(value->count);
  const std::byte* at = value->data;
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto bytes = Load<uint64_t>(at);
    strings.push_back(StringAt(at + sizeof(bytes), bytes));
    at += sizeof(bytes) + bytes;
  }
  return strings;
}

absl::StatusOr<std::vector<bool>> GgufFile::GetBoolArray(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Value* value, GetArray(key, "an array of bools"));
  if (value->element != GgufType::kBool) return WrongType(path(), key, "an array of bools");
  std::vector<bool> flags(value->count);
  for (uint64_t i = 0; i < value->count; ++i) flags[i] = Load<uint8_t>(value->data + i) != 0;
  return flags;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetIntArray(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Value* value, GetArray(key, "an array of integers"));
  std::vector<int64_t> numbers;
  const uint64_t bytes = ScalarBytes(value->element);
  if (bytes > 0) numbers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number = IntegerAt(value->element, value->data + i * bytes);
    if (!number.has_value()) return WrongType(path(), key, "an array of integers");
    numbers.push_back(*number);
  }
  return numbers;
}

absl::StatusOr<std::vector<float>> GgufFile::GetFloatArray(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Value* value, GetArray(key, "an array of float32"));
  if (value->element != GgufType::kFloat32) return WrongType(path(), key, "an array of float32");
  std::vector<float> numbers(value->count);
  if (!numbers.empty()) std::memcpy(numbers.data(), value->data, numbers.size() * sizeof(float));
  return numbers;
}

absl::StatusOr<int64_t> GgufFile::GetArrayLength(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const Value* value, GetArray(key, "an array"));
  return static_cast<int64_t>(value->count);
}

const TensorView* GgufFile::Find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace baton
