#include "router/route/router_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/config/load.h"

namespace baton {
namespace {

using testing::HasSubstr;

constexpr char kNodes[] = "nodes:\n  decode: [127.0.0.1:7201]\n";

TEST(RouterConfigTest, DefaultsAndOverrides) {
  auto config = config::Parse(RouterSection(),
                              std::string(kNodes) +
                                  "policy:\n  decode: round_robin\n"
                                  "retry:\n  budget_ratio: 0\n"
                                  "prompt:\n  parse_special: false\n",
                              "r.yaml", {.sets = {"http.port=8080", "limits.max_inflight=5"}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->policy.decode, PolicyKind::kRoundRobin);
  EXPECT_EQ(config->policy.prefill, PolicyKind::kPrefix);
  EXPECT_EQ(config->retry.budget_ratio, 0);
  EXPECT_FALSE(config->prompt.parse_special);
  EXPECT_EQ(config->http.port, 8080);
  EXPECT_EQ(config->limits.max_inflight, 5);
  EXPECT_EQ(config->scope, "default");
}

TEST(RouterConfigTest, MistakesAreNamed) {
  const struct {
    std::string text;
    const char* says;
  } cases[] = {
      {"{}", "nodes"},
      {"nodes:\n  decode: []\n", "nodes"},
      {"nodes:\n  decode: [no-port]\n", "no-port"},
      {"nodes:\n  decode: [a:1, a:1]\n", "a:1"},
      {std::string(kNodes) + "  require_prefill: true\n", "require_prefill"},
      {std::string(kNodes) + "polcy: {}\n", "policy"},
      {std::string(kNodes) + "policy:\n  decode: fastest\n", "least_loaded"},
      {std::string(kNodes) + "limits:\n  max_inflight: 0\n", "max_inflight"},
      {std::string(kNodes) + "rpc: {port: 80}\nhttp: {port: 80}\n", "http.port"},
      {std::string(kNodes) + "scope: \"a b\"\n", "scope"},
      {std::string(kNodes) + "auth: {keys: [{name: a, sha256: abc}]}\n", "keys[0].sha256"},
      {std::string(kNodes) + "auth: {keys: [{sha256: abc}]}\n", "name"},
  };
  for (const auto& c : cases) {
    const auto config = config::Parse(RouterSection(), c.text, "r.yaml");
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(c.says)) << c.text;
  }
}

}  // namespace
}  // namespace baton
