#include "decode_node/serve/strategy.h"

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

struct NamedStrategy {
  const char* name;
  Strategy strategy;
};
constexpr NamedStrategy kStrategies[] = {{"auto", Strategy::kAuto},
                                         {"oracle", Strategy::kOracle},
                                         {"raw", Strategy::kRaw},
                                         {"q4", Strategy::kQ4},
                                         {"reuse", Strategy::kReuse},
                                         {"scd", Strategy::kScd},
                                         {"selective", Strategy::kSelective}};

}  // namespace

const char* StrategyName(Strategy strategy) {
  for (const NamedStrategy& e : kStrategies) {
    if (e.strategy == strategy) return e.name;
  }
  return "unknown";
}

std::optional<Strategy> ParseStrategy(std::string_view name) {
  for (const NamedStrategy& e : kStrategies) {
    if (e.name == name) return e.strategy;
  }
  return std::nullopt;
}

std::vector<std::pair<std::string, Strategy>> StrategyNames() {
  std::vector<std::pair<std::string, Strategy>> names;
  for (const NamedStrategy& e : kStrategies) names.emplace_back(e.name, e.strategy);
  return names;
}

std::string AllowedStrategies() {
  std::string text;
  for (const NamedStrategy& e : kStrategies)
    absl::StrAppend(&text, text.empty() ? "" : ", ", e.name);
  return text;
}

}  // namespace baton
