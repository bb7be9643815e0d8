#include "common/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/engine/counter_random.h"
#include "kernels/sampling.h"

namespace baton {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
// Candidates looked at first when only the head of the distribution is needed.
constexpr std::size_t kFirstHead = 256;

absl::Status CheckLogits(std::span<const float> logits) {
  bool bad = false;
  for (const float x : logits) bad |= !(x <= std::numeric_limits<float>::max());
  if (!bad) return absl::OkStatus();
  return absl::InternalError("the model returned logits that are not numbers");
}

absl::Status NothingLeft() { return absl::InternalError("no token is left to choose from"); }

std::int32_t MostLikely(std::span<const float> logits) {
  return static_cast<std::int32_t>(ArgMax(logits.data(), static_cast<std::int64_t>(logits.size())));
}

bool ChangesLogits(const SampleRequest& request) {
  return !request.params->logit_bias.empty() || !request.forbidden.empty() ||
         NeedsHistory(*request.params);
}

void ApplyPenalties(const SamplingParams& params, const TokenHistory& history,
                    std::vector<float>& logits) {
  const float repetition = static_cast<float>(params.repetition_penalty);
  for (const auto& [token, count] : history.counts()) {
    float& x = logits[static_cast<std::size_t>(token)];
    x = x > 0 ? x / repetition : x * repetition;
    if (count > 0) {
      x -= static_cast<float>(params.frequency_penalty) * static_cast<float>(count) +
           static_cast<float>(params.presence_penalty);
    }
  }
}

void ChangeLogits(const SampleRequest& request, std::vector<float>& logits) {
  for (const auto& [token, bias] : request.params->logit_bias) {
    logits[static_cast<std::size_t>(token)] += bias;
  }
  if (request.history != nullptr && NeedsHistory(*request.params)) {
    ApplyPenalties(*request.params, *request.history, logits);
  }
  for (const std::int32_t token : request.forbidden) {
    logits[static_cast<std::size_t>(token)] = kNever;
  }
}

// Orders by falling logit, ties by id, so that a cut never depends on the sort.
struct MoreLikely {
  const std::vector<float>& logits;
  bool operator()(std::int32_t a, std::int32_t b) const {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

// Sorts the `head` most likely ids to the front.
void SortHead(std::vector<std::int32_t>& ids, std::size_t head, const MoreLikely& order) {
  if (head < ids.size()) {
    std::nth_element(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(head), ids.end(),
                     order);
  }
  std::sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(std::min(head, ids.size())),
            order);
}

// Cuts `ids` to the smallest head whose weights reach top_p of `total`. Weight of an id:
// exp((logit - max) / temperature).
void CutTopP(double top_p, double total, const std::vector<double>& weights,
             const MoreLikely& order, std::vector<std::int32_t>& ids) {
  for (std::size_t head = std::min(kFirstHead, ids.size());;
       head = std::min(head * 8, ids.size())) {
    SortHead(ids, head, order);
    double sum = 0;
    for (std::size_t i = 0; i < head; ++i) {
      sum += weights[static_cast<std::size_t>(ids[i])];
      if (sum >= top_p * total) {
        ids.resize(i + 1);
        return;
      }
    }
    if (head == ids.size()) return;  // rounding: everything is needed
  }
}

std::int32_t Draw(const std::vector<std::int32_t>& ids, const std::vector<double>& weights,
                  double u) {
  double total = 0;
  for (const std::int32_t id : ids) total += weights[static_cast<std::size_t>(id)];
  double left = u * total;
  std::int32_t last = ids.front();
  for (const std::int32_t id : ids) {
    const double w = weights[static_cast<std::size_t>(id)];
    if (w <= 0) continue;
    last = id;
    if (left < w) return id;
    left -= w;
  }
  return last;
}

// `scratch.logits` holds the changed logits, their maximum is finite.
std::int32_t SampleRandom(const SampleRequest& request, float max, SamplerScratch& scratch) {
  const SamplingParams& params = *request.params;
  const std::vector<float>& logits = scratch.logits;
  std::vector<double>& weights = scratch.weights;
  std::vector<std::int32_t>& ids = scratch.ids;
  weights.resize(logits.size());
  ids.clear();
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double w = std::exp((static_cast<double>(logits[i]) - max) / params.temperature);
    weights[i] = w;
    if (w > 0 && w >= params.min_p) {  // the most likely token has weight 1
      ids.push_back(static_cast<std::int32_t>(i));
      total += w;
    }
  }
  const MoreLikely order{logits};
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < ids.size()) {
    SortHead(ids, static_cast<std::size_t>(params.top_k), order);
    ids.resize(static_cast<std::size_t>(params.top_k));
    total = 0;
    for (const std::int32_t id : ids) total += weights[static_cast<std::size_t>(id)];
  }
  if (params.top_p < 1) CutTopP(params.top_p, total, weights, order, ids);
  return Draw(ids, weights, UniformAt(request.seed, request.index));
}

std::vector<TokenLogprob> Logprobs(std::span<const float> logits, std::int32_t chosen, int top,
                                   SamplerScratch& scratch) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - max);
  const double lse = max + std::log(sum);
  const auto of = [&](std::int32_t token) {
    return TokenLogprob{token, static_cast<float>(logits[static_cast<std::size_t>(token)] - lse)};
  };
  std::vector<TokenLogprob> result{of(chosen)};
  if (top > 0) {
    scratch.logits.assign(logits.begin(), logits.end());
    scratch.ids.resize(logits.size());
    std::iota(scratch.ids.begin(), scratch.ids.end(), 0);
    const std::size_t head = std::min(static_cast<std::size_t>(top), logits.size());
    SortHead(scratch.ids, head, MoreLikely{scratch.logits});
    for (std::size_t i = 0; i < head; ++i) result.push_back(of(scratch.ids[i]));
  }
  return result;
}

}  // namespace

bool NeedsHistory(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

absl::StatusOr<std::vector<TokenLogprob>> ScoreToken(std::span<const float> logits,
                                                     std::int32_t token, int top,
                                                     SamplerScratch& scratch) {
  absl::Status status = CheckLogits(logits);
  if (!status.ok()) return status;
  return Logprobs(logits, token, top, scratch);
}

absl::StatusOr<SampledToken> SampleToken(const SampleRequest& request, SamplerScratch& scratch) {
  absl::Status status = CheckLogits(request.logits);
  if (!status.ok()) return status;
  SampledToken result;
  const bool greedy = request.params->temperature == 0;
  if (greedy && !ChangesLogits(request)) {
    result.token = MostLikely(request.logits);
    if (request.logits[static_cast<std::size_t>(result.token)] == kNever) return NothingLeft();
  } else {
    scratch.logits.assign(request.logits.begin(), request.logits.end());
    ChangeLogits(request, scratch.logits);
    result.token = MostLikely(scratch.logits);
    const float max = scratch.logits[static_cast<std::size_t>(result.token)];
    if (max == kNever) return NothingLeft();
    if (!greedy) result.token = SampleRandom(request, max, scratch);
  }
  if (request.params->logprobs) {
    result.logprobs = Logprobs(request.logits, result.token, request.params->top_logprobs, scratch);
  }
  return result;
}

}  // namespace baton
