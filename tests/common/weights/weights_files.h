// Writes small weights files for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_dir.h"

namespace baton {

struct F32Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// Values that differ everywhere and are small.
inline F32Tensor Counting(std::vector<int64_t> shape, float start) {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  F32Tensor tensor{std::move(shape), std::vector<float>(static_cast<size_t>(n))};
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    tensor.values[i] = start + 0.001f * static_cast<float>(i);
  }
  return tensor;
}

inline std::string SafetensorsBytes(const std::map<std::string, F32Tensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.values.data()),
                tensor.values.size() * sizeof(float));
    header[name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text + data;
}

// GGUF v3 with F32 tensors.
class GgufBuilder {
 public:
  void Text(const std::string& key, const std::string& value) {
    Begin(key, 8);
    String(value, &metadata_);
  }
  void U32(const std::string& key, uint32_t value) {
    Begin(key, 4);
    Raw(value, &metadata_);
  }
  void F32(const std::string& key, float value) {
    Begin(key, 6);
    Raw(value, &metadata_);
  }
  void Bools(const std::string& key, const std::vector<bool>& values) {
    Begin(key, 9);
    Raw(uint32_t{7}, &metadata_);
    Raw(static_cast<uint64_t>(values.size()), &metadata_);
    for (const bool value : values) Raw(static_cast<uint8_t>(value), &metadata_);
  }
  void Tensor(const std::string& name, const F32Tensor& tensor) {
    String(name, &infos_);
    Raw(static_cast<uint32_t>(tensor.shape.size()), &infos_);
    for (size_t i = tensor.shape.size(); i-- > 0;) Raw(tensor.shape[i], &infos_);
    Raw(uint32_t{0}, &infos_);
    data_.resize((data_.size() + 31) / 32 * 32);
    Raw(static_cast<uint64_t>(data_.size()), &infos_);
    data_.append(reinterpret_cast<const char*>(tensor.values.data()),
                 tensor.values.size() * sizeof(float));
    ++tensors_;
  }
  std::string Bytes() const {
    std::string out = "GGUF";
    Raw(uint32_t{3}, &out);
    Raw(tensors_, &out);
    Raw(entries_, &out);
    out += metadata_ + infos_;
    out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

 private:
  template <typename T>
  static void Raw(T value, std::string* out) {
    out->append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void String(const std::string& text, std::string* out) {
    Raw(static_cast<uint64_t>(text.size()), out);
    out->append(text);
  }
  void Begin(const std::string& key, uint32_t type) {
    String(key, &metadata_);
    Raw(type, &metadata_);
    ++entries_;
  }

  std::string metadata_;
  std::string infos_;
  std::string data_;
  uint64_t entries_ = 0;
  uint64_t tensors_ = 0;
};

}  // namespace baton
