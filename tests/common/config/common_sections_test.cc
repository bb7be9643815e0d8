#include "common/config/common_sections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/load.h"

namespace baton::config {
namespace {

using ::testing::HasSubstr;

struct Daemon {
  LogConfig log;
  NodeNameConfig node;
  HttpConfig http;
  RpcConfig rpc;
  ShutdownConfig shutdown;
};

Section<Daemon> DaemonSection() {
  Section<Daemon> s("All shared sections.");
  s.Sub("log", &Daemon::log, LogSection());
  s.Sub("node", &Daemon::node, NodeSection());
  s.Sub("http", &Daemon::http, HttpSection());
  s.Sub("rpc", &Daemon::rpc, RpcSection());
  s.Sub("shutdown", &Daemon::shutdown, ShutdownSection());
  return s;
}

absl::StatusOr<Daemon> Read(std::string_view text, std::vector<std::string> sets = {}) {
  LoadOptions options;
  options.sets = std::move(sets);
  options.env = [](const std::string&) { return std::nullopt; };
  return Parse(DaemonSection(), text, "d.yaml", options);
}

std::string ErrorOf(std::string_view text) {
  const auto config = Read(text);
  return config.ok() ? "" : std::string(config.status().message());
}

TEST(CommonSectionsTest, AFullFile) {
  const auto config = Read(R"(
log: {level: off, format: json}
node: {name: NO}
http: {bind: 0.0.0.0, port: 9090}
rpc:
  bind: "::"
  port: 7002
  advertise: decode-0.baton.svc:7002
  max_message_bytes: 32MiB
  tls: {cert: /c.pem, key: /k.pem, ca: /ca.pem}
shutdown: {drain_timeout: 1m}
)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->log.level, LogLevel::kOff);
  EXPECT_EQ(config->log.format, LogFormat::kJson);
  EXPECT_EQ(config->node.name, "NO");
  EXPECT_EQ(config->rpc.bind, "::");
  EXPECT_EQ(config->rpc.max_message_bytes, 32 << 20);
  EXPECT_TRUE(config->rpc.tls.enabled());
  EXPECT_EQ(config->shutdown.drain_timeout, std::chrono::minutes(1));
}

TEST(CommonSectionsTest, DefaultsAreLocalAndPlain) {
  const auto config = Read("");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rpc.bind, "127.0.0.1");
  EXPECT_FALSE(config->rpc.tls.enabled());
}

TEST(CommonSectionsTest, Errors) {
  EXPECT_THAT(ErrorOf("log: {level: warning}"), HasSubstr("did you mean 'warn'?"));
  EXPECT_THAT(ErrorOf("rpc: {bind: \"0.0.0.0:7000\"}"), HasSubstr("without port"));
  EXPECT_THAT(ErrorOf("rpc: {bind: \"\"}"), HasSubstr("rpc.bind"));
  EXPECT_THAT(ErrorOf("rpc: {bind: \"[::]\"}"), HasSubstr("rpc.bind"));
  EXPECT_THAT(ErrorOf("rpc: {advertise: \"host:0\"}"), HasSubstr("host:port"));
  EXPECT_THAT(ErrorOf("rpc: {advertise: \"http://host:1\"}"), HasSubstr("host:port"));
  EXPECT_EQ(ErrorOf("rpc: {advertise: \"[::1]:7000\"}"), "");
  EXPECT_EQ(ErrorOf("rpc: {advertise: \"10.0.0.1\"}"), "");
  EXPECT_EQ(ErrorOf("rpc:\n  tls:\n    cert: /c.pem\n"),
            "d.yaml:3: rpc.tls.cert: is given without key; give both or neither");
  EXPECT_THAT(ErrorOf("node: {name: \"a b\"}"), HasSubstr("'a b' is not a name"));
  EXPECT_THAT(ErrorOf("http: {port: 70000}"), HasSubstr("0 to 65535"));
}

}  // namespace
}  // namespace baton::config
