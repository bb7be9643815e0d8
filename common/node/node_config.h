// The config sections that a prefill and a decode node share.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/schema.h"
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
  DType weight_dtype = DType::kF32;
  std::string adapter;        // PEFT folder; empty: none
  std::string base_model;     // what a producer calls the base; empty: `name`
  std::string chat_template;  // name or file that overrides the model's own; empty: none
  int max_context = 0;        // tokens; 0: the model's
  DType kv_dtype = DType::kF32;
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
};
config::Section<EngineConfig> EngineSection();

}  // namespace baton
