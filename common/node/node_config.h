// The config sections that a prefill and a decode node share.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/config/common_sections.h"
#include "common/config/schema.h"
#include "common/model/weight_dtype.h"
#include "kernels/dtype.h"

namespace baton {

// transport: how K/V travels between nodes.
struct TransportConfig {
  std::vector<std::string> tls;          // UCX_TLS; empty: shared memory and TCP
  std::vector<std::string> net_devices;  // UCX_NET_DEVICES; empty: all
  std::chrono::milliseconds progress_deadline{5'000};
  int window = 8;  // messages in flight per peer
  std::int64_t max_landing_bytes = std::int64_t{2} << 30;
};
config::Section<TransportConfig> TransportSection();

// threads: absent numbers are split from the processors this process may use.
struct ThreadsConfig {
  std::optional<int> engine;
  std::optional<int> worker;
};
config::Section<ThreadsConfig> ThreadsSection();

// memory:
struct MemoryConfig {
  std::optional<std::int64_t> kv_cache;  // bytes; absent: `fraction` of what is free after weights
  double fraction = 0.4;
};
config::Section<MemoryConfig> MemorySection();

// One of models: a name that requests use, and what serves it.
struct ModelEntry {
  std::string name;
  std::string path;  // a .gguf file or a Hugging Face folder
  WeightDType weight_dtype = WeightDType::kF32;
  std::string adapter;        // PEFT folder; empty: none
  std::string base_model;     // what a producer calls the base; empty: `name`
  std::string chat_template;  // name or file that overrides the model's own; empty: none
  int max_context = 0;        // tokens; 0: the model's
  DType kv_dtype = DType::kF32;
  std::vector<std::string> codecs;  // files of `baton calibrate`
  std::string selective_layers;     // "9-23", what `selective` computes here; empty: none
};
config::Section<ModelEntry> ModelEntrySection();
// Names are unique. INVALID_ARGUMENT names the entry.
absl::Status CheckModelEntries(const std::vector<ModelEntry>& entries);

// engine:
struct EngineConfig {
  int step_tokens = 512;
  int max_running = 64;
  int max_waiting = 1024;
  bool prefix_cache = true;
  int max_lora_rank = 1024;
};
config::Section<EngineConfig> EngineSection();

// What the files of both nodes have. Each node's own config derives from it and adds its `handoff`.
struct NodeConfig {
  config::NodeNameConfig node;
  config::LogConfig log;
  config::RpcConfig rpc;
  config::HttpConfig http;
  TransportConfig transport;
  ThreadsConfig threads;
  MemoryConfig memory;
  std::vector<ModelEntry> models;
  EngineConfig engine;
  config::ShutdownConfig shutdown;
};

// Rules across sections: names of models are unique, gRPC and HTTP have a port each.
absl::Status CheckNodeConfig(const NodeConfig& config);

// The table of a node's file: the sections of NodeConfig, and `handoff` among them.
template <typename Config, typename Handoff>
config::Section<Config> NodeFileSection(std::string help, std::string models_help, int max_models,
                                        Handoff Config::*handoff,
                                        const config::Section<Handoff>& handoff_section) {
  config::Section<Config> s(std::move(help));
  const auto sub = [&s]<typename T>(const char* key, T NodeConfig::*member,
                                    const config::Section<T>& section) {
    s.Sub(key, static_cast<T Config::*>(member), section);
  };
  sub("node", &NodeConfig::node, config::NodeSection());
  sub("log", &NodeConfig::log, config::LogSection());
  sub("rpc", &NodeConfig::rpc, config::RpcSection());
  sub("http", &NodeConfig::http, config::HttpSection());
  sub("transport", &NodeConfig::transport, TransportSection());
  sub("threads", &NodeConfig::threads, ThreadsSection());
  sub("memory", &NodeConfig::memory, MemorySection());
  s.List("models", static_cast<std::vector<ModelEntry> Config::*>(&NodeConfig::models),
         ModelEntrySection())
      .Items(1, max_models)
      .Help(std::move(models_help));
  sub("engine", &NodeConfig::engine, EngineSection());
  s.Sub("handoff", handoff, handoff_section);
  sub("shutdown", &NodeConfig::shutdown, config::ShutdownSection());
  s.Check([](const Config& c) { return CheckNodeConfig(c); });
  return s;
}

}  // namespace baton
