// Progress of a work of several stages: one bar after the other, as the stages come.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/progress.h"

namespace baton::tools {

// A CalibrationProgress. One thread at a time.
class Stages {
 public:
  void operator()(std::string_view stage, std::int64_t done, std::int64_t total);

 private:
  std::string stage_;
  std::optional<Progress> bar_;
};

}  // namespace baton::tools
