#include "common/weights/layer_run.h"

#include <charconv>
#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "common/base/strings.h"

namespace baton {
namespace {

constexpr int kMaxLayer = 65535;

std::optional<int> Layer(std::string_view text) {
  int layer = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, layer);
  if (error != std::errc() || stopped != end || layer < 0 || layer > kMaxLayer) return {};
  return layer;
}

}  // namespace

absl::StatusOr<LayerRun> ParseLayerRun(std::string_view text) {
  const std::size_t dash = text.find('-');
  if (dash != std::string_view::npos) {
    const auto first = Layer(text.substr(0, dash));
    const auto last = Layer(text.substr(dash + 1));
    if (first && last && *first <= *last) return LayerRun{*first, *last + 1};
  }
  return absl::InvalidArgumentError(
      Cat("'", text, "' is not a run of layers as in 9-23, its first and its last"));
}

std::string LayerRunText(LayerRun run) { return Cat(run.begin, "-", run.end - 1); }

}  // namespace baton
