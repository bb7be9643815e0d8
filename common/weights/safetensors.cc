#include "common/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

struct HeaderEntry {
  std::string name;
  std::optional<StoredDType> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

std::optional<StoredDType> DTypeByName(std::string_view name) {
  constexpr std::array kAllowed = {
      StoredDType::kF64,  StoredDType::kF32,    StoredDType::kF16,    StoredDType::kBF16,
      StoredDType::kI64,  StoredDType::kI32,    StoredDType::kI16,    StoredDType::kI8,
      StoredDType::kU64,  StoredDType::kU32,    StoredDType::kU16,    StoredDType::kU8,
      StoredDType::kBool, StoredDType::kF8E4M3, StoredDType::kF8E5M2,
  };
  for (StoredDType dtype : kAllowed) {
    if (DTypeName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

// Reads the header without building a tree: a repeated key, a number that is no unsigned integer or
// a level too deep stops it at once.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
  std::string error;

  bool null() override { return Fail("null"); }
  bool boolean(bool) override { return Fail("a boolean"); }
  bool number_integer(number_integer_t) override { return Fail("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Fail("a number that is not an unsigned 64-bit integer");
  }
  bool binary(binary_t&) override { return Fail("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kList) return Fail("a number");
    if (list_.size() >= kMaxTensorRank) {
      error = Cat("tensor '", name_, "': ", field_, " has more than ", kMaxTensorRank, " entries");
      return false;
    }
    list_.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      metadata[field_] = value;
      return true;
    }
    if (place_ != Place::kTensor || field_ != "dtype") return Fail("a string");
    entries.back().dtype = DTypeByName(value);
    if (!entries.back().dtype) {
      error = Cat("tensor '", name_, "': dtype '", value, "' is unknown");
      return false;
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return Fail("an object");
    fields_.clear();
    if (name_ == "__metadata__") {
      place_ = Place::kMetadata;
    } else {
      place_ = Place::kTensor;
      entries.push_back({name_, {}, {}, {}});
    }
    return true;
  }

  bool key(string_t& key) override {
    auto& seen = place_ == Place::kTop ? names_ : fields_;
    if (!seen.insert(key).second) {
      error = place_ == Place::kTop ? Cat("tensor '", key, "' is listed twice")
                                    : Cat("'", name_, "': '", key, "' is given twice");
      return false;
    }
    if (place_ == Place::kTop) {
      name_ = key;
      field_.clear();
      return true;
    }
    field_ = key;
    if (place_ == Place::kTensor && key != "dtype" && key != "shape" && key != "data_offsets") {
      error = Cat("tensor '", name_, "': unknown field '", key, "'");
      return false;
    }
    return true;
  }

  bool end_object() override {
    place_ = Place::kTop;  // also after the last }, where nothing can follow
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || field_ == "dtype") return Fail("an array");
    place_ = Place::kList;
    list_.clear();
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    HeaderEntry& entry = entries.back();
    if (field_ == "data_offsets") {
      entry.offsets = list_;
      return true;
    }
    entry.shape.emplace();
    for (uint64_t dim : list_) {
      if (dim > static_cast<uint64_t>(INT64_MAX)) {
        error = Cat("tensor '", name_, "': dimension ", dim, " is too large");
        return false;
      }
      entry.shape->push_back(static_cast<int64_t>(dim));
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& e) override {
    error = Cat("not valid JSON near byte ", position);
    return false;
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kList };

  bool Fail(std::string_view what) {
    error = place_ == Place::kStart ? Cat("is ", what, ", not an object")
                                    : Cat("'", name_, "': unexpected ", what,
                                          field_.empty() ? "" : Cat(" in '", field_, "'"));
    return false;
  }

  Place place_ = Place::kStart;
  std::string name_;
  std::string field_;
  std::vector<uint64_t> list_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
};

absl::StatusOr<TensorView> ToView(const HeaderEntry& entry, const std::byte* data,
                                  uint64_t data_size) {
  const auto bad = [&](std::string_view what) {
    return absl::InvalidArgumentError(Cat("tensor '", entry.name, "': ", what));
  };
  if (!entry.dtype) return bad("no dtype");
  if (!entry.shape) return bad("no shape");
  if (!entry.offsets) return bad("no data_offsets");
  if (entry.offsets->size() != 2) return bad("data_offsets must be two numbers");
  const uint64_t begin = (*entry.offsets)[0];
  const uint64_t end = (*entry.offsets)[1];
  if (end < begin || end > data_size) {
    return bad(Cat("data_offsets [", begin, ", ", end, "] do not lie in the ", data_size,
                   " bytes of data"));
  }
  const auto bytes = TensorBytes(*entry.dtype, *entry.shape);
  if (!bytes.ok()) return bad(StdView(bytes.status().message()));
  if (static_cast<uint64_t>(*bytes) != end - begin) {
    return bad(Cat("shape ", ShapeString(*entry.shape), " of ", DTypeName(*entry.dtype), " needs ",
                   *bytes, " bytes, data_offsets give ", end - begin));
  }
  TensorView view{entry.name, *entry.dtype, *entry.shape, nullptr, end - begin};
  if (view.nbytes > 0) view.data = data + begin;
  return view;
}

struct Contents {
  std::vector<TensorView> tensors;  // in the order of their data, which they fill without a gap
  std::map<std::string, std::string> metadata;
};

absl::StatusOr<Contents> ReadContents(const MappedFile& file) {
  uint64_t header_size = 0;
  if (file.size() < sizeof(header_size)) {
    return absl::InvalidArgumentError("too short for a safetensors file");
  }
  std::memcpy(&header_size, file.data(), sizeof(header_size));
  if (header_size > kMaxSafetensorsHeader || header_size > file.size() - sizeof(header_size)) {
    return absl::InvalidArgumentError(Cat("header length ", header_size, " is beyond the file of ",
                                          file.size(), " bytes or the limit of ",
                                          kMaxSafetensorsHeader));
  }
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + sizeof(header_size),
                                header_size);
  if (header.empty() || header[0] != '{') {
    return absl::InvalidArgumentError("header does not begin with '{'");
  }
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header.begin(), header.end(), &reader)) {
    return absl::InvalidArgumentError(Cat("header: ", reader.error));
  }
  const std::byte* data = file.data() + sizeof(header_size) + header_size;
  const uint64_t data_size = file.size() - sizeof(header_size) - header_size;
  std::vector<std::pair<uint64_t, TensorView>> views;
  for (const HeaderEntry& entry : reader.entries) {
    BATON_ASSIGN_OR_RETURN(TensorView view, ToView(entry, data, data_size));
    views.emplace_back((*entry.offsets)[0], std::move(view));
  }
  std::stable_sort(views.begin(), views.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.first + a.second.nbytes) <
           std::pair(b.first, b.first + b.second.nbytes);
  });
  uint64_t at = 0;
  Contents contents{{}, std::move(reader.metadata)};
  for (auto& [begin, view] : views) {
    if (begin != at) {
      return absl::InvalidArgumentError(
          Cat("tensor '", view.name, "' begins at ", begin, ", the data before it ends at ", at));
    }
    at = begin + view.nbytes;
    contents.tensors.push_back(std::move(view));
  }
  if (at != data_size) {
    return absl::InvalidArgumentError(
        Cat("tensors end at ", at, ", the data at ", data_size, " bytes"));
  }
  return contents;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile(std::move(mapped)));
  auto contents = ReadContents(file->file_);
  if (!contents.ok()) {
    return absl::InvalidArgumentError(Cat(path, ": ", StdView(contents.status().message())));
  }
  file->tensors_ = std::move(contents->tensors);
  file->metadata_ = std::move(contents->metadata);
  for (size_t i = 0; i < file->tensors_.size(); ++i) {
    file->by_name_.emplace(file->tensors_[i].name, i);
  }
  return file;
}

const TensorView* SafetensorsFile::Find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";

// Tensor names by shard.
absl::StatusOr<std::map<std::string, std::vector<std::string>>> ReadIndex(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxSafetensorsHeader));
  const auto root = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    return absl::InvalidArgumentError(Cat(path, ": no object 'weight_map'"));
  }
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, file] : root["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name == "." || name == ".." ||
        name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      return absl::InvalidArgumentError(
          Cat(path, ": tensor '", tensor, "': '", name, "' is not the name of a file beside it"));
    }
    shards[name].push_back(tensor);
  }
  if (shards.empty()) return absl::InvalidArgumentError(Cat(path, ": 'weight_map' is empty"));
  return shards;
}

}  // namespace

absl::Status SafetensorsSet::AddShards(const std::string& dir, const std::string& index_path) {
  BATON_ASSIGN_OR_RETURN(const auto shards, ReadIndex(index_path));
  std::vector<std::string> missing;
  std::vector<std::string> damaged;
  for (const auto& [name, names] : shards) {
    const std::string path = Cat(dir, "/", name);
    if (!std::filesystem::exists(path)) {
      missing.push_back(Cat("file ", name));
      continue;
    }
    auto opened = SafetensorsFile::Open(path);
    if (!opened.ok()) {
      damaged.emplace_back(opened.status().message());
      continue;
    }
    auto file = *std::move(opened);
    for (const std::string& tensor : names) {
      const TensorView* view = file->Find(tensor);
      if (view == nullptr) {
        missing.push_back(Cat("tensor ", tensor, " of ", name));
        continue;
      }
      tensors_.emplace(tensor, Entry{view, &file->path()});
    }
    files_.push_back(std::move(file));
  }
  if (!missing.empty()) {
    damaged.push_back(Cat(index_path, ": missing: ", absl::StrJoin(missing, ", ")));
    return absl::NotFoundError(absl::StrJoin(damaged, "; "));
  }
  if (!damaged.empty()) return absl::InvalidArgumentError(absl::StrJoin(damaged, "; "));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SafetensorsSet>> SafetensorsSet::OpenDirectory(
    const std::string& dir) {
  std::unique_ptr<SafetensorsSet> set(new SafetensorsSet());
  const std::string index_path = Cat(dir, "/", kIndexName);
  if (std::filesystem::exists(index_path)) {
    BATON_RETURN_IF_ERROR(set->AddShards(dir, index_path));
    return set;
  }
  BATON_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(Cat(dir, "/model.safetensors")));
  for (const TensorView& view : file->tensors()) {
    set->tensors_.emplace(view.name, Entry{&view, &file->path()});
  }
  set->files_.push_back(std::move(file));
  return set;
}

}  // namespace baton
