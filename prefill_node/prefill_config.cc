#include "prefill_node/prefill_config.h"

#include "common/wire/frame.h"

namespace baton {
namespace {

config::Section<PrefillHandoffConfig> HandoffSection() {
  config::Section<PrefillHandoffConfig> s("Sending K/V to decode nodes.");
  s.Duration("heartbeat", &PrefillHandoffConfig::heartbeat)
      .Range(std::chrono::milliseconds(100), std::chrono::minutes(1))
      .Help("Time between signs of life on the stream of a transfer.");
  s.Duration("lease", &PrefillHandoffConfig::lease)
      .Range(std::chrono::seconds(1), std::chrono::hours(1))
      .Help("A transfer whose signs of life nobody reads is dropped after this.");
  s.Bytes("frame_bytes", &PrefillHandoffConfig::frame_bytes)
      .Range(64 << 10, static_cast<std::int64_t>(kMaxFramePayloadBytes))
      .Help("Payload of one frame; a frame holds at least one page of each head.");
  s.Int("window", &PrefillHandoffConfig::window)
      .Range(1, 1024)
      .Help("Frames of one transfer in flight.");
  s.Bytes("code_store_bytes", &PrefillHandoffConfig::code_store_bytes)
      .Range(0, std::int64_t{1} << 50)
      .Help("Codes of prefixes that are kept, the latest used; 0: none.");
  s.Bool("code_ahead", &PrefillHandoffConfig::code_ahead)
      .Help(
          "While a prefix is computed for one codec, the codes of the model's other codecs are "
          "made "
          "for the store as well, so that it is computed once for all its fine-tunes.");
  return s;
}

}  // namespace

config::Section<PrefillConfig> PrefillSection() {
  return NodeFileSection<PrefillConfig>("A prefill node: computes K/V of shared prefixes.",
                                        "The base models this node computes.", /*max_models=*/64,
                                        &PrefillConfig::handoff, HandoffSection());
}

}  // namespace baton
