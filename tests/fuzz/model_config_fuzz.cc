// config.json, a line "---", generation_config.json.
#include <cmath>

#include "common/weights/model_config.h"
#include "common/weights/model_config_check.h"
#include "tests/fuzz/fuzz_util.h"

namespace baton {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parts = FuzzParts(FuzzText(data, size), 2);
  const auto config = ParseHfConfig(parts[0], parts[1]);
  if (!config.ok()) {
    CheckError(config.status());
    return 0;
  }
  FUZZ_CHECK(CheckModelConfig(*config).ok());
  FUZZ_CHECK(config->layers > 0 && config->heads > 0 && config->kv_heads > 0);
  FUZZ_CHECK(config->heads % config->kv_heads == 0);
  for (const int32_t id : config->eos_ids) FUZZ_CHECK(id >= 0 && id < config->vocab);
  if (const auto runnable = CheckRunnable(*config); !runnable.ok()) CheckError(runnable);

  const auto frequencies = RopeInverseFrequencies(*config);
  FUZZ_CHECK(static_cast<int64_t>(frequencies.size()) == config->head_dim / 2);
  for (const float f : frequencies) FUZZ_CHECK(std::isfinite(f) && f >= 0);
  if (config->layers > 64) return 0;  // the list is long and says nothing new
  for (const auto& [name, shape] : ExpectedTensors(*config)) {
    for (const int64_t dim : shape) FUZZ_CHECK(dim > 0);
  }
  return 0;
}

}  // namespace baton
