#include "common/tokenizer/stop_matcher.h"

#include <deque>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "common/base/strings.h"

namespace baton {

// Aho-Corasick over bytes. Node 0 is the root.
struct StopMatcher::Automaton {
  struct Node {
    std::map<uint8_t, uint32_t> children;
    uint32_t fail = 0;
    uint32_t depth = 0;             // bytes of the longest suffix that begins a stop string
    std::optional<size_t> longest;  // the longest stop string that ends here
    size_t longest_size = 0;
  };
  std::vector<Node> nodes{1};

  void Add(const std::string& stop, size_t index) {
    uint32_t at = 0;
    for (char c : stop) {
      const auto next = static_cast<uint32_t>(nodes.size());
      const auto [it, added] = nodes[at].children.emplace(static_cast<uint8_t>(c), next);
      const uint32_t child = it->second;
      if (added) {
        const uint32_t depth = nodes[at].depth + 1;
        nodes.emplace_back().depth = depth;
      }
      at = child;
    }
    if (!nodes[at].longest.has_value()) {
      nodes[at].longest = index;
      nodes[at].longest_size = stop.size();
    }
  }

  // Breadth first: a node's suffix link is shallower, hence complete before it is used.
  void Link() {
    std::deque<uint32_t> queue;
    for (const auto& [byte, child] : nodes[0].children) queue.push_back(child);
    while (!queue.empty()) {
      const uint32_t at = queue.front();
      queue.pop_front();
      for (const auto& [byte, child] : nodes[at].children) {
        nodes[child].fail = Next(nodes[at].fail, byte);
        queue.push_back(child);
      }
      const Node& fail = nodes[nodes[at].fail];
      if (!nodes[at].longest.has_value() && fail.longest.has_value()) {
        nodes[at].longest = fail.longest;
        nodes[at].longest_size = fail.longest_size;
      }
    }
  }

  uint32_t Next(uint32_t at, uint8_t byte) const {
    while (true) {
      const auto it = nodes[at].children.find(byte);
      if (it != nodes[at].children.end()) return it->second;
      if (at == 0) return 0;
      at = nodes[at].fail;
    }
  }
};

absl::StatusOr<StopMatcher> StopMatcher::Create(std::vector<std::string> stops) {
  StopMatcher matcher;
  if (stops.empty()) return matcher;
  if (stops.size() > kMaxStops) {
    return absl::InvalidArgumentError(
        Cat("stop: ", stops.size(), " strings given, at most ", kMaxStops, " allowed"));
  }
  auto automaton = std::make_shared<Automaton>();
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) {
      return absl::InvalidArgumentError(Cat("stop[", i, "]: is an empty string"));
    }
    if (stops[i].size() > kMaxStopBytes) {
      return absl::InvalidArgumentError(Cat("stop[", i, "]: ", stops[i].size(),
                                            " bytes given, at most ", kMaxStopBytes, " allowed"));
    }
    automaton->Add(stops[i], i);
  }
  automaton->Link();
  matcher.automaton_ = std::move(automaton);
  return matcher;
}

void StopMatcher::Step(uint8_t byte) {
  held_.push_back(static_cast<char>(byte));
  state_ = automaton_->Next(state_, byte);
  const Automaton::Node& node = automaton_->nodes[state_];
  // Of the stop strings that end here the longest begins earliest. A later match that begins at
  // the same place is a longer string and does not replace the first.
  if (node.longest.has_value()) {
    const size_t begin = held_.size() - node.longest_size;
    if (!found_.has_value() || begin < found_begin_) {
      found_ = node.longest;
      found_begin_ = begin;
    }
  }
}

StopMatcher::Result StopMatcher::Push(std::string_view text) {
  Result result;
  if (done_) return result;
  if (automaton_ == nullptr) {
    result.emit = std::string(text);
    return result;
  }
  for (char c : text) {
    Step(static_cast<uint8_t>(c));
    // Everything before the longest suffix that could still grow into a match is certain.
    const size_t open = held_.size() - automaton_->nodes[state_].depth;
    if (found_.has_value() && open >= found_begin_) {
      result.emit.append(held_, 0, found_begin_);
      result.matched = found_;
      held_.clear();
      done_ = true;
      return result;
    }
    if (!found_.has_value() && open > 0) {
      result.emit.append(held_, 0, open);
      held_.erase(0, open);
    }
  }
  return result;
}

StopMatcher::Result StopMatcher::Flush() {
  Result result;
  if (!done_) {
    result.emit = found_.has_value() ? held_.substr(0, found_begin_) : std::move(held_);
    result.matched = found_;
  }
  held_.clear();
  done_ = true;
  return result;
}

}  // namespace baton
