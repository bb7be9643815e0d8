#include "decode_node/ripple/group_select.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace baton {
namespace {

struct Group {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  float score = 0;
};

// By mean over the group of the sum over `heads` rows of `scores`, highest first.
std::vector<Group> Ranked(absl::Span<const float> scores, std::int64_t heads,
                          absl::Span<const std::int32_t> starts) {
  const std::int64_t n = static_cast<std::int64_t>(scores.size()) / heads;
  assert(!starts.empty() && starts.front() == 0 && starts.back() < n);
  std::vector<Group> groups;
  for (std::size_t g = 0; g < starts.size(); ++g) {
    Group group{starts[g], g + 1 < starts.size() ? starts[g + 1] : n, 0};
    for (std::int64_t t = group.begin; t < group.end; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        group.score += scores[static_cast<std::size_t>(h * n + t)];
      }
    }
    group.score /= static_cast<float>(group.end - group.begin);
    groups.push_back(group);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.score > b.score; });
  return groups;
}

}  // namespace

std::vector<std::int32_t> ChunkStarts(std::int64_t tokens, std::int64_t length) {
  std::vector<std::int32_t> starts;
  for (std::int64_t t = 0; t < tokens; t += length) starts.push_back(static_cast<std::int32_t>(t));
  return starts;
}

KeptPositions SelectGroups(absl::Span<const float> scores, std::int64_t kv_heads,
                           absl::Span<const std::int32_t> starts, std::int64_t count) {
  std::vector<Group> groups = Ranked(scores, kv_heads, starts);
  groups.resize(
      static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, std::int64_t(groups.size()))));
  std::vector<std::int32_t> kept;
  for (const Group& group : groups) {
    for (std::int64_t t = group.begin; t < group.end; ++t) {
      kept.push_back(static_cast<std::int32_t>(t));
    }
  }
  std::sort(kept.begin(), kept.end());
  return KeptPositions(static_cast<std::size_t>(kv_heads), kept);
}

KeptPositions SelectWithinGroups(absl::Span<const float> scores, std::int64_t kv_heads,
                                 absl::Span<const std::int32_t> starts, std::int64_t budget) {
  const std::int64_t n = static_cast<std::int64_t>(scores.size()) / kv_heads;
  KeptPositions kept(static_cast<std::size_t>(kv_heads));
  for (std::int64_t h = 0; h < kv_heads; ++h) {
    const auto row = scores.subspan(static_cast<std::size_t>(h * n), static_cast<std::size_t>(n));
    std::vector<std::int32_t>& out = kept[static_cast<std::size_t>(h)];
    std::int64_t left = std::clamp<std::int64_t>(budget, 0, n);
    for (const Group& group : Ranked(row, 1, starts)) {
      const auto part = row.subspan(static_cast<std::size_t>(group.begin),
                                    static_cast<std::size_t>(group.end - group.begin));
      const KeptPositions kept_part = SelectTop(part, 1, left);
      for (const std::int32_t t : kept_part.front()) {
        out.push_back(static_cast<std::int32_t>(group.begin) + t);
      }
      left = std::max<std::int64_t>(0, left - (group.end - group.begin));
    }
    std::sort(out.begin(), out.end());
  }
  return kept;
}

}  // namespace baton
