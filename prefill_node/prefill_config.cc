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
  return s;
}

}  // namespace

config::Section<PrefillConfig> PrefillSection() {
  config::Section<PrefillConfig> s("A prefill node: computes K/V of shared prefixes.");
  s.Sub("node", &PrefillConfig::node, config::NodeSection());
  s.Sub("log", &PrefillConfig::log, config::LogSection());
  s.Sub("rpc", &PrefillConfig::rpc, config::RpcSection());
  s.Sub("http", &PrefillConfig::http, config::HttpSection());
  s.Sub("transport", &PrefillConfig::transport, TransportSection());
  s.Sub("threads", &PrefillConfig::threads, ThreadsSection());
  s.Sub("memory", &PrefillConfig::memory, MemorySection());
  s.List("models", &PrefillConfig::models, ModelEntrySection())
      .Items(1, 64)
      .Help("The base models this node computes.");
  s.Sub("engine", &PrefillConfig::engine, EngineSection());
  s.Sub("handoff", &PrefillConfig::handoff, HandoffSection());
  s.Sub("shutdown", &PrefillConfig::shutdown, config::ShutdownSection());
  s.Check([](const PrefillConfig& c) { return CheckModelEntries(c.models); });
  return s;
}

}  // namespace baton
