#include "prefill_node/prefill_config.h"

#include "common/wire/frame.h"

namespace baton {
namespace {

absl::Status CheckSpill(const PrefillHandoffConfig& c) {
  if (c.code_spill_path.empty() != (c.code_spill_bytes == 0)) {
    return absl::InvalidArgumentError(
        c.code_spill_path.empty()
            ? "code_spill_bytes: needs code_spill_path, the folder for the files"
            : "code_spill_path: needs code_spill_bytes above 0, the bound of the files");
  }
  if (!c.code_spill_path.empty() && c.code_store_bytes == 0) {
    return absl::InvalidArgumentError(
        "code_spill_path: needs code_store_bytes above 0: what leaves memory is spilled");
  }
  return absl::OkStatus();
}

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
  s.String("code_spill_path", &PrefillHandoffConfig::code_spill_path)
      .ExpandEnv()
      .Example("/var/lib/baton/codes")
      .Help(
          "Folder for the codes that code_store_bytes has no room for; they outlive the process. "
          "One node at a time; readable only by its user, as codes tell of prompts. Empty: they "
          "are forgotten.");
  s.Bytes("code_spill_bytes", &PrefillHandoffConfig::code_spill_bytes)
      .Range(0, std::int64_t{1} << 50)
      .Example("100GiB")
      .Help("Bound of the files in code_spill_path, the latest used.");
  s.Bool("code_ahead", &PrefillHandoffConfig::code_ahead)
      .Help(
          "While a prefix is computed for one codec, the codes of the model's other codecs are "
          "made "
          "for the store as well, so that it is computed once for all its fine-tunes.");
  s.Check(CheckSpill);
  return s;
}

}  // namespace

config::Section<PrefillConfig> PrefillSection() {
  return NodeFileSection<PrefillConfig>("A prefill node: computes K/V of shared prefixes.",
                                        "The base models this node computes.", /*max_models=*/64,
                                        &PrefillConfig::handoff, HandoffSection());
}

}  // namespace baton
