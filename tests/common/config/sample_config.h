// A configuration with every kind of field, for the tests of this folder.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/load.h"
#include "common/config/schema.h"

namespace baton::config {

enum class Policy { kFcfs, kPriority };

struct EngineConfig {
  int max_batch = 64;
  std::chrono::milliseconds patience{250};
  double share = 0.9;
  double learning_rate = 0.001;
  int64_t pool_bytes = 1 << 20;
  std::optional<int64_t> cache_bytes;
  std::optional<int> threads;
  bool chunked = true;
  Policy policy = Policy::kFcfs;
  friend bool operator==(const EngineConfig&, const EngineConfig&) = default;
};

struct ModelConfig {
  std::string name;
  std::string path;
  uint8_t weight = 1;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

struct SampleConfig {
  std::string name = "node";
  std::string token;
  int port = 7000;
  std::vector<std::string> peers;
  EngineConfig engine;
  std::vector<ModelConfig> models;
  friend bool operator==(const SampleConfig&, const SampleConfig&) = default;
};

inline Section<EngineConfig> EngineSection() {
  Section<EngineConfig> s("Batching.");
  s.Int("max_batch", &EngineConfig::max_batch)
      .Range(1, 4096)
      .Help("Sequences per step.")
      .Env("SAMPLE_MAX_BATCH");
  s.Duration("patience", &EngineConfig::patience)
      .Range(std::chrono::milliseconds(0), std::chrono::minutes(5))
      .Help("Longest wait.")
      .Example("250ms")
      .Reloadable();
  s.Fraction("share", &EngineConfig::share).Help("Share of memory.");
  s.Double("learning_rate", &EngineConfig::learning_rate).RangeAbove(0, 1);
  s.Bytes("pool_bytes", &EngineConfig::pool_bytes).Range(4096, int64_t{1} << 40);
  s.Bytes("cache_bytes", &EngineConfig::cache_bytes);
  s.Int("threads", &EngineConfig::threads).Range(1, 64);
  s.Bool("chunked", &EngineConfig::chunked);
  s.Enum("policy", &EngineConfig::policy,
         {{"fcfs", Policy::kFcfs}, {"priority", Policy::kPriority}});
  s.Check([](const EngineConfig& c) {
    if (!c.cache_bytes || *c.cache_bytes <= c.pool_bytes) return absl::OkStatus();
    return absl::InvalidArgumentError("cache_bytes: must not exceed pool_bytes");
  });
  return s;
}

inline Section<ModelConfig> ModelSection() {
  Section<ModelConfig> s("A model.");
  s.String("name", &ModelConfig::name).Required().NotEmpty();
  s.String("path", &ModelConfig::path).Required().ExpandEnv().Help("File | folder.");
  s.Int("weight", &ModelConfig::weight);
  return s;
}

inline Section<SampleConfig> SampleSection() {
  Section<SampleConfig> s("A sample daemon.");
  s.String("name", &SampleConfig::name).Size(1, 20).Help("Who.");
  s.String("token", &SampleConfig::token).Secret().ExpandEnv();
  s.Port("port", &SampleConfig::port);
  s.StringList("peers", &SampleConfig::peers).Items(0, 3).Reloadable();
  s.Sub("engine", &SampleConfig::engine, EngineSection());
  s.List("models", &SampleConfig::models, ModelSection()).Items(0, 2).Help("What is served.");
  return s;
}

// Reads `text` as sample.yaml with no environment but `env`.
inline absl::StatusOr<SampleConfig> ParseSample(
    std::string_view text, std::vector<std::string> sets = {},
    std::vector<std::pair<std::string, std::string>> env = {}) {
  LoadOptions options;
  options.sets = std::move(sets);
  options.env = [env](const std::string& name) -> std::optional<std::string> {
    for (const auto& [key, value] : env) {
      if (key == name) return value;
    }
    return std::nullopt;
  };
  return Parse(SampleSection(), text, "sample.yaml", options);
}

inline std::string SampleError(std::string_view text, std::vector<std::string> sets = {}) {
  const auto config = ParseSample(text, std::move(sets));
  return config.ok() ? "" : std::string(config.status().message());
}

}  // namespace baton::config
