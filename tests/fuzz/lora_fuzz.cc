// A PEFT adapter: adapter_config.json, a line "---", adapter_model.safetensors.
#include <cmath>
#include <filesystem>
#include <fstream>

#include "common/weights/lora.h"
#include "tests/fuzz/fuzz_util.h"

namespace baton {
namespace {

// One folder per process; a target runs one input at a time.
const std::string& Folder() {
  static const std::string& folder = *[] {
    std::string pattern = std::filesystem::temp_directory_path() / "baton_lora_fuzz_XXXXXX";
    FUZZ_CHECK(mkdtemp(pattern.data()) != nullptr);
    std::atexit([] { std::filesystem::remove_all(Folder()); });
    return new std::string(pattern);  // outlives the handler
  }();
  return folder;
}

// The model the seeds' adapters fit.
ModelConfig Model() {
  ModelConfig model;
  model.layers = 2;
  model.hidden = 8;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 4;
  model.ffn = 12;
  model.vocab = 20;
  return model;
}

void Write(const std::string& name, std::string_view bytes) {
  std::ofstream(Folder() + "/" + name, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parts = FuzzParts(FuzzText(data, size), 2);
  Write("adapter_config.json", parts[0]);
  Write("adapter_model.safetensors", parts[1]);
  const ModelConfig model = Model();
  const auto adapter = LoadLoraAdapter(Folder(), "fuzz", model, 16);
  if (!adapter.ok()) {
    CheckError(adapter.status());
    return 0;
  }
  FUZZ_CHECK(static_cast<int64_t>(adapter->layers.size()) == model.layers);
  for (const LoraLayer& layer : adapter->layers) {
    for (const auto& [name, module] : layer) {
      FUZZ_CHECK(module.rank > 0 && module.rank <= 16 && module.rank <= adapter->max_rank);
      FUZZ_CHECK(static_cast<int64_t>(module.a.size()) == module.rank * module.in);
      FUZZ_CHECK(static_cast<int64_t>(module.b.size()) == module.out * module.rank);
      FUZZ_CHECK(std::isfinite(module.scale));
    }
  }
  return 0;
}

}  // namespace baton
