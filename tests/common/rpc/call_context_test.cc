#include "common/rpc/call_context.h"

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "common/rpc/channel.h"

namespace baton {
namespace {

TEST(CallContext, RequestIdsThatCouldForgeALogLineAreRefused) {
  EXPECT_TRUE(IsValidRequestId("a-B_9.:x"));
  EXPECT_TRUE(IsValidRequestId(std::string(128, 'a')));
  EXPECT_FALSE(IsValidRequestId(""));
  EXPECT_FALSE(IsValidRequestId(std::string(129, 'a')));
  EXPECT_FALSE(IsValidRequestId("a b"));
  EXPECT_FALSE(IsValidRequestId("a\nb"));
  EXPECT_FALSE(IsValidRequestId("a\"b"));
}

TEST(CallContext, InfiniteDeadlineIsNone) {
  grpc::ClientContext context;
  SetDeadline(context, absl::InfiniteFuture());
  EXPECT_EQ(context.deadline(), std::chrono::system_clock::time_point::max());
  const absl::Time at = absl::Now() + absl::Seconds(5);
  SetDeadline(context, at);
  EXPECT_LT(absl::AbsDuration(absl::FromChrono(context.deadline()) - at), absl::Milliseconds(1));
}

TEST(Channel, AddressesAreChecked) {
  EXPECT_TRUE(MakeChannel("127.0.0.1:1").ok());
  EXPECT_TRUE(MakeChannel("[::1]:65535").ok());
  for (const char* bad : {"", "host", ":80", "host:", "host:0", "host:65536", "host:x"}) {
    auto channel = MakeChannel(bad);
    ASSERT_FALSE(channel.ok()) << bad;
    EXPECT_EQ(channel.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Channel, TlsFilesAreNamedInErrors) {
  ChannelOptions options;
  options.tls = ChannelTls{.ca_path = "/nowhere/ca.pem"};
  auto channel = MakeChannel("127.0.0.1:1", options);
  EXPECT_EQ(channel.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(channel.status().message()).find("/nowhere/ca.pem"), std::string::npos);
}

}  // namespace
}  // namespace baton
