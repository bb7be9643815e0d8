#include "decode_node/serve/decode_config.h"

namespace baton {
namespace {

config::Section<DecodeHandoffConfig> HandoffSection() {
  config::Section<DecodeHandoffConfig> s("Getting K/V of shared prefixes from prefill nodes.");
  s.Enum("strategy", &DecodeHandoffConfig::strategy, StrategyNames())
      .Help(
          "For requests that name none. auto: raw where the producer's weights are the model's "
          "own, codes where its codec's held-out KL is at most max_kl, both if the prefix is long "
          "enough; else oracle (computed here). q4: as raw, in 4-bit "
          "codes. scd: codes of the producer's states, turned into the model's own K/V by the "
          "first "
          "of its codecs (models[].codecs); oracle for a model without one. reuse: the same by the "
          "first codec without patch layers or a run of layers. selective: as raw, but for the "
          "layers in "
          "models[].selective_layers, which are computed here from the producer's residual stream; "
          "oracle for a model without such layers.");
  s.Int("min_prefix_tokens", &DecodeHandoffConfig::min_prefix_tokens)
      .Range(0, 1 << 20)
      .Help("auto: shorter prefixes are computed here.");
  s.Duration("timeout", &DecodeHandoffConfig::timeout)
      .Range(std::chrono::milliseconds(100), std::chrono::hours(1))
      .Help("Longest time a hand-off may take, all producers tried together.");
  s.Duration("link_timeout", &DecodeHandoffConfig::link_timeout)
      .Range(std::chrono::milliseconds(10), std::chrono::minutes(1))
      .Help("Longest wait for a producer's first answer.");
  s.Duration("progress_timeout", &DecodeHandoffConfig::progress_timeout)
      .Range(std::chrono::milliseconds(50), std::chrono::minutes(10))
      .Help(
          "A producer that sends neither a frame nor a sign of life for this long is given up; "
          "longer than its handoff.heartbeat.");
  s.Enum("on_failure", &DecodeHandoffConfig::on_failure,
         {{"recompute", OnFailure::kRecompute}, {"fail", OnFailure::kFail}})
      .Help(
          "When no producer delivers: compute the prefix here, or fail a request that named its "
          "strategy.");
  s.Fraction("drift_sample", &DecodeHandoffConfig::drift_sample)
      .Help(
          "Share of the requests served by codes that are replayed over the model's own prefill, "
          "to "
          "export how far their predictions are from it (baton_drift_*). 0: none.");
  s.Duration("target", &DecodeHandoffConfig::target)
      .Range(std::chrono::milliseconds(0), std::chrono::minutes(1))
      .Help(
          "Codes: the least important components of a code stay away until it fits what the link "
          "has "
          "been seen to carry in this time. 0: nothing stays away for it.");
  s.Double("max_kl", &DecodeHandoffConfig::max_kl)
      .Range(0, 100)
      .Help(
          "auto: codes are used if calibration measured at most this KL to the model's own "
          "prefill, "
          "in nats a predicted token; all of a code comes then.");
  s.Int("seam", &DecodeHandoffConfig::seam)
      .Range(0, kMaxSeam)
      .Help(
          "Codes: so many tokens at the end of a prefix, rounded up to pages of 16, are computed "
          "here on top of what is decoded: what follows depends most on them. A prefix that has no "
          "more is computed here whole. Requests may say otherwise (handoff_seam).");
  s.Int("bytes_per_token", &DecodeHandoffConfig::bytes_per_token)
      .Range(0, 1 << 20)
      .Help("Codes: the least important components of a code stay away to fit; 0: all come.");
  return s;
}

}  // namespace

config::Section<DecodeConfig> DecodeSection() {
  return NodeFileSection<DecodeConfig>("A decode node: serves models to routers.",
                                       "What requests may ask for.", /*max_models=*/256,
                                       &DecodeConfig::handoff, HandoffSection());
}

}  // namespace baton
