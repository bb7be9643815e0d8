// A run of a model's layers: those that a consumer computes itself over a prefix.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton {

struct LayerRun {
  int begin = 0;
  int end = 0;  // exclusive

  int size() const { return end - begin; }
  bool empty() const { return size() <= 0; }
  bool contains(int layer) const { return begin <= layer && layer < end; }

  friend bool operator==(const LayerRun&, const LayerRun&) = default;
};

// Of "9-23", the last one included; one layer is "9-9". INVALID_ARGUMENT for anything else, and for
// layers above 65535.
absl::StatusOr<LayerRun> ParseLayerRun(std::string_view text);

// The same of a run that is not empty.
std::string LayerRunText(LayerRun run);

}  // namespace baton
