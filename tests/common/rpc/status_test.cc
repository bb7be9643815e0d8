#include "common/rpc/status.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/sanitized.h"

namespace baton {
namespace {

TEST(Status, EveryCodeSurvivesTheRoundTrip) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status there = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(there.error_code()), code);
    EXPECT_EQ(there.error_message(), "why");
    EXPECT_EQ(FromGrpcStatus(there), status);
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

// Case len-03: whoever meets the limit of a hop learns which setting it is.
TEST(Status, AMessageOverTheLimitNamesTheSetting) {
  const grpc::Status over(grpc::StatusCode::RESOURCE_EXHAUSTED,
                          "Received message larger than max (5242885 vs. 4194304)");
  const absl::Status status = FromGrpcStatus(over);
  EXPECT_EQ(status.message(),
            "Received message larger than max (5242885 vs. 4194304); the limit is "
            "rpc.max_message_bytes");
  EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);  // once only, over any number of hops
}

TEST(Status, CodesNobodyKnowsAreUnknown) {
  if (BATON_SANITIZED) GTEST_SKIP() << "gRPC itself loads the code as its enum";
  EXPECT_EQ(FromGrpcStatus(grpc::Status(static_cast<grpc::StatusCode>(77), "x")).code(),
            absl::StatusCode::kUnknown);
}

TEST(Status, LongMessagesAreCutBetweenCharacters) {
  std::string text = "x";
  while (text.size() < 10'000) text += "é";
  const std::string cut = ToGrpcStatus(absl::InternalError(text)).error_message();
  EXPECT_EQ(cut, text.substr(0, 4095) + "…");
}

TEST(Status, HttpCodes) {
  EXPECT_EQ(ToHttpStatus(absl::StatusCode::kOk), 200);
  EXPECT_EQ(ToHttpStatus(absl::StatusCode::kInvalidArgument), 400);
  EXPECT_EQ(ToHttpStatus(absl::StatusCode::kUnauthenticated), 401);
  EXPECT_EQ(ToHttpStatus(absl::StatusCode::kNotFound), 404);
  EXPECT_EQ(ToHttpStatus(absl::StatusCode::kResourceExhausted), 429);
  EXPECT_EQ(ToHttpStatus(absl::StatusCode::kInternal), 500);
  EXPECT_EQ(ToHttpStatus(absl::StatusCode::kUnavailable), 503);
  EXPECT_EQ(ToHttpStatus(absl::StatusCode::kDeadlineExceeded), 504);
}

TEST(Status, OnlyWhatMayWorkElsewhereIsRetryable) {
  EXPECT_TRUE(IsRetryable(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(IsRetryable(absl::StatusCode::kResourceExhausted));
  EXPECT_FALSE(IsRetryable(absl::StatusCode::kInvalidArgument));
  EXPECT_FALSE(IsRetryable(absl::StatusCode::kDeadlineExceeded));
  EXPECT_FALSE(IsRetryable(absl::StatusCode::kInternal));
}

}  // namespace
}  // namespace baton
