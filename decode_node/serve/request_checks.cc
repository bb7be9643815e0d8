#include "decode_node/serve/request_checks.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/prefix_hash/block_hash.h"
#include "common/sampling/validate.h"
#include "kernels/kv_page.h"

namespace baton {
namespace {

constexpr int kMaxProducers = 16;
constexpr char kGlobalScope[] = "global";

absl::Status Bad(const std::string& field, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

// Ids are 64-bit in the protocol: one that does not fit the engine's type is not narrowed silently.
absl::StatusOr<std::int32_t> NarrowId(const std::string& field, std::int64_t id,
                                      std::int32_t vocab) {
  if (id >= 0 && id < vocab) return static_cast<std::int32_t>(id);
  return Bad(field, absl::StrCat(id, " is outside the vocabulary of ", vocab));
}

absl::StatusOr<SamplingParams> CheckSampling(const v1::SamplingParams& p, std::int32_t vocab) {
  SamplingParams out;
  if (p.has_temperature()) out.temperature = p.temperature();
  if (p.has_top_p()) out.top_p = p.top_p();
  if (p.has_top_k()) out.top_k = p.top_k();
  if (p.has_min_p()) out.min_p = p.min_p();
  if (p.has_presence_penalty()) out.presence_penalty = p.presence_penalty();
  if (p.has_frequency_penalty()) out.frequency_penalty = p.frequency_penalty();
  if (p.has_repetition_penalty()) out.repetition_penalty = p.repetition_penalty();
  if (p.has_seed()) out.seed = p.seed();
  out.logprobs = p.logprobs();
  out.top_logprobs = p.top_logprobs();
  out.prompt_logprobs = p.prompt_logprobs();
  for (const auto& [id, bias] : p.logit_bias()) {
    BATON_ASSIGN_OR_RETURN(const std::int32_t token,
                           NarrowId(absl::StrCat("logit_bias[", id, "]"), id, vocab));
    out.logit_bias.emplace_back(token, static_cast<float>(bias));
  }
  // A map has no order; the engine's arithmetic must not depend on one.
  std::sort(out.logit_bias.begin(), out.logit_bias.end());
  BATON_RETURN_IF_ERROR(ValidateSampling(out, {.vocab_size = vocab}));
  return out;
}

absl::StatusOr<StopParams> CheckStop(const v1::StopConditions& s, std::int32_t vocab, bool scoring,
                                     std::int64_t prompt, std::int64_t context) {
  StopParams out;
  out.max_tokens = s.has_max_tokens() ? s.max_tokens() : context - prompt;
  out.min_tokens = s.min_tokens();
  out.stop.assign(s.stop().begin(), s.stop().end());
  out.ignore_eos = s.ignore_eos();
  for (int i = 0; i < s.stop_token_ids_size(); ++i) {
    BATON_ASSIGN_OR_RETURN(
        const std::int32_t token,
        NarrowId(absl::StrCat("stop_token_ids[", i, "]"), s.stop_token_ids(i), vocab));
    out.stop_token_ids.push_back(token);
  }
  BATON_RETURN_IF_ERROR(ValidateStop(out, {.vocab_size = vocab, .scoring = scoring}));
  BATON_RETURN_IF_ERROR(CheckContext(prompt, out.max_tokens, context));
  return out;
}

template <typename Ids>
absl::StatusOr<std::vector<std::int32_t>> CheckIds(const std::string& field, const Ids& ids,
                                                   std::int32_t vocab) {
  std::vector<std::int32_t> out;
  out.reserve(static_cast<size_t>(ids.size()));
  for (int i = 0; i < ids.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const std::int32_t id,
                           NarrowId(absl::StrCat(field, "[", i, "]"), ids[i], vocab));
    out.push_back(id);
  }
  return out;
}

absl::StatusOr<Strategy> CheckStrategy(const std::string& text, Strategy fallback) {
  if (text.empty()) return fallback;
  if (const auto strategy = ParseStrategy(text)) return *strategy;
  return Bad("strategy", absl::StrCat("\"", text, "\"; allowed: ", AllowedStrategies()));
}

// Whole pages: a landing ends where a page does.
absl::StatusOr<std::int32_t> CheckSeam(const v1::DecodeRequest& request, int fallback) {
  const std::int64_t seam = request.has_handoff_seam() ? request.handoff_seam() : fallback;
  if (seam > kMaxSeam) {
    return Bad("handoff_seam", absl::StrCat(seam, " tokens; allowed: up to ", kMaxSeam));
  }
  return static_cast<std::int32_t>((seam + kPageRows - 1) / kPageRows * kPageRows);
}

}  // namespace

absl::StatusOr<CheckedRequest> CheckRequest(const v1::DecodeRequest& request, const ModelHost& host,
                                            const DecodeHandoffConfig& defaults) {
  CheckedRequest out;
  out.model = host.Find(request.model());
  if (out.model == nullptr) {
    return absl::NotFoundError(absl::StrCat("model: this node has no \"", request.model(),
                                            "\"; it has ", host.ModelNames()));
  }
  const HostedModel& m = *out.model;
  EngineRequest& r = out.request;
  const std::int64_t prompt = request.token_ids_size();
  if (prompt == 0) return Bad("token_ids", "the prompt is empty");
  if (!request.stop().has_max_tokens()) {
    BATON_RETURN_IF_ERROR(CheckContext(prompt, /*max_tokens=*/1, m.max_context));
  }
  BATON_ASSIGN_OR_RETURN(r.tokens, CheckIds("token_ids", request.token_ids(), m.vocab));
  BATON_ASSIGN_OR_RETURN(r.resume_tokens,
                         CheckIds("resume_token_ids", request.resume_token_ids(), m.vocab));
  BATON_ASSIGN_OR_RETURN(r.sampling, CheckSampling(request.sampling(), m.vocab));
  BATON_ASSIGN_OR_RETURN(r.stop, CheckStop(request.stop(), m.vocab, r.sampling.prompt_logprobs,
                                           prompt, m.max_context));
  r.eos_token_ids = m.eos_token_ids;
  if (static_cast<std::int64_t>(r.resume_tokens.size()) >= r.stop.max_tokens &&
      !r.resume_tokens.empty()) {
    return Bad("resume_token_ids",
               absl::StrCat(r.resume_tokens.size(), " tokens leave nothing of max_tokens ",
                            r.stop.max_tokens));
  }
  BATON_ASSIGN_OR_RETURN(out.strategy, CheckStrategy(request.strategy(), defaults.strategy));
  if (request.strategy() == StrategyName(Strategy::kSelective) && m.selective.empty()) {
    return Bad("strategy", absl::StrCat("selective: \"", m.name,
                                        "\" has no models[].selective_layers on this node"));
  }
  BATON_ASSIGN_OR_RETURN(out.seam, CheckSeam(request, defaults.seam));
  if (request.prefill_nodes_size() > kMaxProducers) {
    return Bad("prefill_nodes",
               absl::StrCat(request.prefill_nodes_size(), " nodes; allowed: ", kMaxProducers));
  }
  out.producers.assign(request.prefill_nodes().begin(), request.prefill_nodes().end());
  out.no_producer_reason = request.no_prefill_reason();
  out.scope = request.scope().empty() ? kGlobalScope : request.scope();
  std::optional<std::int64_t> asked;
  if (request.has_shared_prefix_tokens()) asked = request.shared_prefix_tokens();
  out.prefix_tokens = static_cast<std::int32_t>(
      ShareablePrefix(r.tokens, asked, std::min(m.vocab, m.tokenizer->vocab_size())));
  r.request_id = request.request_id();
  r.adapter = m.adapter;
  r.priority = request.priority();
  // Computed here and not taken from the request: a wrong hash would poison the cache. Those of a
  // router that hashes otherwise would lead it to the wrong nodes for ever, so they are refused.
  r.cache.blocks = ChainHashes(r.tokens, ChainSeed(m.tokenizer->digest(), out.scope));
  for (int i = 0; i < request.block_hashes_size(); ++i) {
    if (static_cast<size_t>(i) >= r.cache.blocks.size() ||
        r.cache.blocks[static_cast<size_t>(i)].Hex() != request.block_hashes(i)) {
      return Bad(absl::StrCat("block_hashes[", i, "]"),
                 "is not the hash of that block of token_ids in this scope");
    }
  }
  r.cache.exact_space = m.native_space.Digest();
  return out;
}

}  // namespace baton
