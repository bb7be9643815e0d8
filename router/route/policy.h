// Which of several equally able nodes gets a request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "common/base/mutex.h"

namespace baton {

// kPrefix is for prefill nodes only: OrderByPrefix where the prefix is known, else least loaded.
enum class PolicyKind { kRoundRobin, kLeastLoaded, kPrefix };

// Indices of all nodes, best first, by rendezvous hashing (D. Thaler and C. Ravishankar, "A
// name-based mapping scheme for rendezvous", 1996): prompts of one prefix meet at one node, which
// has computed it, and a node that comes or goes moves only its own share. Nodes with more than
// twice the mean load and two requests more come after all others.
std::vector<size_t> OrderByPrefix(std::string_view prefix, absl::Span<const std::string> nodes,
                                  absl::Span<const int64_t> loads);

// Thread-safe.
class Policy {
 public:
  virtual ~Policy() = default;

  // Index of the chosen node. `loads`: requests at each candidate, at least one candidate. `group`
  // keeps rotations apart (a model's name).
  virtual size_t Pick(const std::string& group, absl::Span<const int64_t> loads) = 0;
  // All indices, best first.
  virtual std::vector<size_t> Order(const std::string& group, absl::Span<const int64_t> loads) = 0;

  static std::unique_ptr<Policy> Make(PolicyKind kind);
};

// Each in turn.
class RoundRobinPolicy final : public Policy {
 public:
  size_t Pick(const std::string& group, absl::Span<const int64_t> loads) override;
  std::vector<size_t> Order(const std::string& group, absl::Span<const int64_t> loads) override;

 private:
  uint64_t Next(const std::string& group) EXCLUDES(mu_);
  Mutex mu_;
  std::map<std::string, uint64_t> counters_ GUARDED_BY(mu_);
};

// The less loaded of two distinct random candidates (power of two choices), so that routers with
// equally stale figures don't all choose the same node. Ties are broken by a counter, not by index.
class LeastLoadedPolicy final : public Policy {
 public:
  explicit LeastLoadedPolicy(uint64_t seed = std::random_device{}()) : random_(seed) {}
  size_t Pick(const std::string& group, absl::Span<const int64_t> loads) override;
  // By load; equal loads in an order that rotates.
  std::vector<size_t> Order(const std::string& group, absl::Span<const int64_t> loads) override;

 private:
  Mutex mu_;
  std::mt19937_64 random_ GUARDED_BY(mu_);
  uint64_t ties_ GUARDED_BY(mu_) = 0;
};

}  // namespace baton
