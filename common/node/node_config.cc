#include "common/node/node_config.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "common/tokenizer/chat_template.h"
#include "common/weights/layer_run.h"

namespace baton {

config::Section<TransportConfig> TransportSection() {
  config::Section<TransportConfig> s("How K/V travels between nodes.");
  s.StringList("tls", &TransportConfig::tls)
      .Items(0, 16)
      .Help("UCX transports; empty: posix (shared memory) and tcp.")
      .Example("[posix, tcp]");
  s.StringList("net_devices", &TransportConfig::net_devices)
      .Items(0, 16)
      .Help("Network interfaces UCX may use; empty: all, right only where every one is private.")
      .Example("[eth1]");
  s.Duration("progress_deadline", &TransportConfig::progress_deadline)
      .Range(std::chrono::milliseconds(100), std::chrono::minutes(5))
      .Help("A connection with unfinished work and no progress for this long is closed.");
  s.Int("window", &TransportConfig::window).Range(1, 1024).Help("Messages in flight per peer.");
  s.Bytes("max_landing_bytes", &TransportConfig::max_landing_bytes)
      .Range(1 << 20, std::int64_t{1} << 42)
      .Help("Payloads received at once; more are refused.");
  return s;
}

config::Section<ThreadsConfig> ThreadsSection() {
  config::Section<ThreadsConfig> s("Threads; auto splits the processors this process may use.");
  s.Int("engine", &ThreadsConfig::engine).Range(1, 4096).Help("Threads of one model step.");
  s.Int("worker", &ThreadsConfig::worker)
      .Range(1, 4096)
      .Help("Threads that hash, encode and import K/V.");
  return s;
}

config::Section<MemoryConfig> MemorySection() {
  config::Section<MemoryConfig> s("Memory of the KV cache.");
  s.Bytes("kv_cache", &MemoryConfig::kv_cache)
      .Range(64 << 10, std::int64_t{1} << 46)
      .Help("Bytes of K/V pages; auto: `fraction` of the memory that is free after the weights.")
      .Example("2GiB");
  s.Double("fraction", &MemoryConfig::fraction)
      .RangeAbove(0.0, 0.95)
      .Help("Share of the free memory (machine and container limit) that kv_cache: auto takes.");
  return s;
}

namespace {
const std::vector<std::pair<std::string, DType>>& DTypeNames() {
  static const auto* names = new std::vector<std::pair<std::string, DType>>{
      {"fp32", DType::kF32}, {"bf16", DType::kBF16}, {"fp16", DType::kF16}};
  return *names;
}
}  // namespace

config::Section<ModelEntry> ModelEntrySection() {
  config::Section<ModelEntry> s("A model this node serves.");
  s.String("name", &ModelEntry::name).Size(1, 256).Required().Help("What requests call it.");
  s.String("path", &ModelEntry::path)
      .NotEmpty()
      .Required()
      .ExpandEnv()
      .Help("A .gguf file or a Hugging Face folder. Entries of one path share the weights.");
  s.Enum("weight_dtype", &ModelEntry::weight_dtype, WeightDTypeNames())
      .Help(
          "How weights are held in memory. file: every tensor as its file stores it, quantised "
          "GGUF types included, with the results of fp32. int8, int4: quantised at load in blocks "
          "of 32; the matrices of the vocabulary are int8 in both.");
  s.String("adapter", &ModelEntry::adapter).ExpandEnv().Help("Folder of a PEFT LoRA adapter.");
  s.String("base_model", &ModelEntry::base_model)
      .Help("The name producers use for this model's base; empty: its own name.");
  s.String("chat_template", &ModelEntry::chat_template)
      .ExpandEnv()
      .Help("A known template's name or a file with its text; overrides the model's own. Names: " +
            ChatTemplate::Names() + ".");
  s.Int("max_context", &ModelEntry::max_context)
      .Range(0, 4 << 20)
      .Help("Tokens of prompt and completion; 0: what the model was made for.");
  s.Enum("kv_dtype", &ModelEntry::kv_dtype, DTypeNames()).Help("How K and V are stored.");
  s.StringList("codecs", &ModelEntry::codecs)
      .ExpandEnv()
      .Help(
          "Codec files of `baton calibrate` that this model is the producer or the consumer of. A "
          "prefill node encodes with all of them, a decode node decodes with the first that makes "
          "this model's K/V.");
  s.String("selective_layers", &ModelEntry::selective_layers)
      .Check([](const std::string& text) {
        return text.empty() ? absl::OkStatus() : ParseLayerRun(text).status();
      })
      .Help(
          "Decode nodes: the layers, first and last as in 9-23, that the strategy selective "
          "computes "
          "here over a prefix; K/V of all others come from the producer. `baton eval scd` says "
          "what "
          "a run of layers is worth for a pair. Empty: the strategy is refused.");
  return s;
}

absl::Status CheckModelEntries(const std::vector<ModelEntry>& entries) {
  std::set<std::string> names;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!names.insert(entries[i].name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("models[", i, "].name: \"", entries[i].name, "\" is used twice"));
    }
  }
  return absl::OkStatus();
}

config::Section<EngineConfig> EngineSection() {
  config::Section<EngineConfig> s("Batching and scheduling.");
  s.Int("step_tokens", &EngineConfig::step_tokens)
      .Range(16, 65536)
      .Help("Prompt tokens a step may compute beside the running sequences.");
  s.Int("max_running", &EngineConfig::max_running).Range(1, 4096).Help("Sequences in a step.");
  s.Int("max_waiting", &EngineConfig::max_waiting)
      .Range(1, 1 << 20)
      .Help("Requests that may wait; more are refused with RESOURCE_EXHAUSTED.");
  s.Bool("prefix_cache", &EngineConfig::prefix_cache).Help("Reuse K/V of known prefixes.");
  s.Int("max_lora_rank", &EngineConfig::max_lora_rank)
      .Range(1, 1024)
      .Help("Adapters of a higher rank are refused at start (adapters are not loaded later).");
  return s;
}

absl::Status CheckNodeConfig(const NodeConfig& config) {
  if (config.rpc.port != 0 && config.rpc.port == config.http.port &&
      config.rpc.bind == config.http.bind) {
    return absl::InvalidArgumentError(absl::StrCat(
        "http.port: ", config.http.port, " is also rpc.port; gRPC and HTTP need one each"));
  }
  return CheckModelEntries(config.models);
}

}  // namespace baton
