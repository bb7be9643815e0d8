#include "prefill_node/prefill_config.h"

#include "absl/strings/str_cat.h"
#include "common/config/load.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

absl::StatusOr<PrefillConfig> ParseHandoff(const std::string& handoff) {
  return config::Parse(
      PrefillSection(),
      absl::StrCat("models: [{name: base, path: /models/base}]\nhandoff: {", handoff, "}\n"),
      "prefill.yaml");
}

TEST(PrefillConfigTest, ASpillNeedsAFolderAndABound) {
  const auto both = ParseHandoff("code_spill_path: /var/lib/codes, code_spill_bytes: 2GiB");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->handoff.code_spill_path, "/var/lib/codes");
  EXPECT_EQ(both->handoff.code_spill_bytes, std::int64_t{2} << 30);
  for (const auto& [handoff, says] : {
           std::pair("code_spill_path: /var/lib/codes", "code_spill_path: needs code_spill_bytes"),
           std::pair("code_spill_bytes: 2GiB", "code_spill_bytes: needs code_spill_path"),
           std::pair("code_spill_path: /a, code_spill_bytes: 2GiB, code_store_bytes: 0",
                     "code_spill_path: needs code_store_bytes"),
       }) {
    const auto parsed = ParseHandoff(handoff);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << handoff;
    EXPECT_THAT(std::string(parsed.status().message()), testing::HasSubstr(says));
  }
}

}  // namespace
}  // namespace baton
