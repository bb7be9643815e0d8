// A daemon's YAML file: what is accepted prints as YAML that reads back to the same value.
#include "common/config/load.h"
#include "common/config/yaml_tree.h"
#include "tests/common/config/sample_config.h"
#include "tests/fuzz/fuzz_util.h"

namespace baton {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = FuzzText(data, size);
  const auto tree = config::ParseYaml(text, "fuzz.yaml");
  if (!tree.ok()) {
    FUZZ_CHECK(tree.status().message().substr(0, 9) == "fuzz.yaml");
    FUZZ_CHECK(!config::ParseSample(text).ok());
    return 0;
  }
  auto value = config::ParseSample(text);
  if (!value.ok()) {
    FUZZ_CHECK(value.status().code() == absl::StatusCode::kInvalidArgument);
    FUZZ_CHECK(!value.status().message().empty());
    return 0;
  }
  value->token.clear();  // printed as stars
  const std::string printed = config::PrintEffective(config::SampleSection(), *value);
  const auto again = config::ParseSample(printed);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(*again == *value);
  return 0;
}

}  // namespace baton
