#include "router/gateway/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/router/gateway/gateway_fixture.h"

namespace baton {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// printf %s KEY | sha256sum
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kSecret[] = "2BB80D537B1DA3E38BD30361AA855686BDE0EACD7162FEF6A25FE97BF527A25B";

ApiKeys TwoKeys() { return *ApiKeys::Create({{"a", kAbc, "team-a"}, {"b", kSecret, ""}}); }

TEST(ApiKeysTest, OnlyKnownKeysPass) {
  const ApiKeys keys = TwoKeys();
  EXPECT_EQ(*keys.TenantOf("Bearer abc"), "team-a");
  EXPECT_EQ(*keys.TenantOf("bearer abc"), "team-a");
  EXPECT_EQ(*keys.TenantOf("Bearer secret"), "");
  for (const char* wrong : {"", "abc", "Bearer", "Bearer ", "Bearer ABC", "Bearer abc ",
                            "Basic abc", "Bearer abcd", "Bearer  abc", kAbc}) {
    EXPECT_EQ(keys.TenantOf(wrong).status().code(), absl::StatusCode::kUnauthenticated) << wrong;
  }
  // The hash itself opens nothing.
  EXPECT_FALSE(keys.TenantOf(std::string("Bearer ") + kAbc).ok());
  EXPECT_TRUE(ApiKeys().TenantOf("").ok()) << "without keys everybody may";
}

TEST(ApiKeysTest, MistakesAreNamedAndNoKeyIsTold) {
  const auto says = [](const std::vector<ApiKeyEntry>& entries) {
    return std::string(ApiKeys::Create(entries).status().message());
  };
  EXPECT_THAT(says({{"", kAbc, ""}}), HasSubstr("keys[0].name"));
  EXPECT_THAT(says({{"a", kAbc, ""}, {"a", kSecret, ""}}), HasSubstr("keys[1].name"));
  EXPECT_THAT(says({{"a", kAbc, ""}, {"b", kAbc, ""}}), HasSubstr("keys[1].sha256"));
  const std::string plain = says({{"a", "my-plain-key", ""}});
  EXPECT_THAT(plain, HasSubstr("keys[0].sha256"));
  EXPECT_THAT(plain, testing::Not(HasSubstr("my-plain-key")));
  EXPECT_FALSE(ApiKeys::Create({{"a", std::string(64, 'g'), ""}}).ok());
}

class ApiKeysHttpTest : public GatewayFixture {
 protected:
  void SetUp() override {
    GatewayFixture::SetUp();
    service_->SetApiKeys(TwoKeys());
    backend_.script = [](const std::shared_ptr<FakeGeneration>& g) {
      g->Delta("ok");
      g->Finished(v1::STOP, 1, 1);
    };
  }
  HttpReplyText Ask(const std::string& method, const std::string& path,
                    const std::string& authorization) {
    client_->Request(method, path, method == "POST" ? R"({"prompt":"x"})" : "",
                     authorization.empty() ? "" : "Authorization: " + authorization + "\r\n");
    return client_->Read();
  }
};

TEST_F(ApiKeysHttpTest, WithoutAKnownKeyTheApiIsClosed) {
  const std::pair<const char*, const char*> paths[] = {{"POST", kCompletionsUrl},
                                                       {"POST", kChatUrl},
                                                       {"GET", "/v1/models"},
                                                       {"GET", "/v1/models/tiny"}};
  for (const char* wrong : {"", "Bearer nope", "Bearer"}) {
    for (const auto& [method, path] : paths) {
      const HttpReplyText reply = Ask(method, path, wrong);
      EXPECT_EQ(reply.status, 401) << path;
      const json error = json::parse(reply.body)["error"];
      EXPECT_EQ(error["code"], "invalid_api_key");
      EXPECT_EQ(error["type"], "authentication_error");
      EXPECT_EQ(reply.headers.at("www-authenticate"), "Bearer");
    }
  }
  for (const char* open : {"/health", "/readyz", "/metrics"}) {
    EXPECT_EQ(Ask("GET", open, "").status, 200) << open;
  }
}

TEST_F(ApiKeysHttpTest, AKeysTenantIsTheRequestsScope) {
  EXPECT_EQ(Ask("POST", kCompletionsUrl, "Bearer abc").status, 200);
  EXPECT_EQ(backend_.At(0)->info.tenant, "team-a");
  EXPECT_EQ(Ask("POST", kCompletionsUrl, "Bearer secret").status, 200);
  EXPECT_EQ(backend_.At(1)->info.tenant, "");
  EXPECT_EQ(Ask("GET", "/v1/models", "Bearer abc").status, 200);
}

}  // namespace
}  // namespace baton
