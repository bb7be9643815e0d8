#include "common/model/weight_dtype.h"

namespace baton {

const std::vector<std::pair<std::string, WeightDType>>& WeightDTypeNames() {
  static const auto* names = new std::vector<std::pair<std::string, WeightDType>>{
      {"fp32", WeightDType::kF32},  {"bf16", WeightDType::kBF16}, {"fp16", WeightDType::kF16},
      {"int8", WeightDType::kInt8}, {"int4", WeightDType::kInt4}, {"file", WeightDType::kFile}};
  return *names;
}

const char* WeightDTypeName(WeightDType dtype) {
  return WeightDTypeNames()[static_cast<std::size_t>(dtype)].first.c_str();
}

WeightFormat FormatOfStored(StoredDType stored) {
  switch (stored) {
    case StoredDType::kBF16:
      return WeightFormat::kBF16;
    case StoredDType::kF16:
      return WeightFormat::kF16;
    case StoredDType::kQ8_0:
      return WeightFormat::kQ8_0;
    case StoredDType::kQ4_0:
      return WeightFormat::kQ4_0;
    case StoredDType::kQ4_1:
      return WeightFormat::kQ4_1;
    case StoredDType::kQ5_0:
      return WeightFormat::kQ5_0;
    case StoredDType::kQ5_1:
      return WeightFormat::kQ5_1;
    case StoredDType::kQ4_K:
      return WeightFormat::kQ4_K;
    case StoredDType::kQ5_K:
      return WeightFormat::kQ5_K;
    case StoredDType::kQ6_K:
      return WeightFormat::kQ6_K;
    default:
      return WeightFormat::kF32;
  }
}

WeightFormat FormatFor(WeightDType dtype, StoredDType stored, bool vocabulary) {
  switch (dtype) {
    case WeightDType::kF32:
      return WeightFormat::kF32;
    case WeightDType::kBF16:
      return WeightFormat::kBF16;
    case WeightDType::kF16:
      return WeightFormat::kF16;
    case WeightDType::kInt8:
      return WeightFormat::kQ8_0;
    case WeightDType::kInt4:
      return vocabulary ? WeightFormat::kQ8_0 : WeightFormat::kQ4_1;
    case WeightDType::kFile:
      return FormatOfStored(stored);
  }
  return WeightFormat::kF32;
}

}  // namespace baton
