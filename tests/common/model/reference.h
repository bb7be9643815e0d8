// A fixture of tests/data/hf_reference: NAME.json (index) with NAME.bin (raw values).
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/test_data.h"

namespace baton {

inline std::string ModelTestData(const std::string& name) { return TestDataDir() + "/" + name; }

inline std::string ReadTestFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

class Reference {
 public:
  explicit Reference(const std::string& name)
      : index_(
            nlohmann::json::parse(ReadTestFile(ModelTestData("hf_reference/" + name + ".json")))),
        blob_(ReadTestFile(ModelTestData("hf_reference/" + name + ".bin"))) {}

  std::vector<float> F32(const std::string& name) const { return Values<float>(name, "f32"); }
  std::vector<std::int32_t> I32(const std::string& name) const {
    return Values<std::int32_t>(name, "i32");
  }
  std::vector<std::int64_t> Shape(const std::string& name) const {
    return index_.at("tensors").at(name).at("shape");
  }
  const nlohmann::json& Scalar(const std::string& name) const {
    return index_.at("scalars").at(name);
  }

 private:
  template <typename T>
  std::vector<T> Values(const std::string& name, const char* dtype) const {
    const auto& t = index_.at("tensors").at(name);
    if (t.at("dtype") != dtype) throw std::runtime_error(name + " is not " + dtype);
    std::size_t n = 1;
    for (std::size_t d : t.at("shape")) n *= d;
    const std::size_t offset = t.at("offset");
    if (offset + n * sizeof(T) > blob_.size()) throw std::runtime_error(name + " is cut off");
    std::vector<T> v(n);
    std::memcpy(v.data(), blob_.data() + offset, n * sizeof(T));
    return v;
  }

  nlohmann::json index_;
  std::string blob_;
};

}  // namespace baton
