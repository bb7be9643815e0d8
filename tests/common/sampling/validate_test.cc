#include "common/sampling/validate.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr SamplingLimits kLimits{.vocab_size = 100};
const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInf = std::numeric_limits<double>::infinity();

void ExpectRefused(const absl::Status& status, const std::string& words) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << words;
  EXPECT_THAT(status.message(), HasSubstr(words));
}

absl::Status Sampling(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  return ValidateSampling(params, kLimits);
}

absl::Status Stop(const std::function<void(StopParams&)>& change) {
  StopParams params;
  params.max_tokens = 8;
  change(params);
  return ValidateStop(params, kLimits);
}

TEST(Validate, DefaultsAreFine) {
  EXPECT_TRUE(ValidateSampling({}, kLimits).ok());
  EXPECT_TRUE(Stop([](StopParams&) {}).ok());
}

TEST(Validate, TemperatureNamesFieldValueAndLimit) {
  ExpectRefused(Sampling([](auto& p) { p.temperature = -1; }),
                "temperature: -1 is outside [0, 100]");
  for (const double bad : {kNan, kInf, -kInf, 1e300, -0.001}) {
    ExpectRefused(Sampling([&](auto& p) { p.temperature = bad; }), "temperature: ");
  }
}

TEST(Validate, EveryNumberIsChecked) {
  for (const double bad : {kNan, kInf, -kInf, -1.0, 1e30}) {
    ExpectRefused(Sampling([&](auto& p) { p.top_p = bad; }), "top_p: ");
    ExpectRefused(Sampling([&](auto& p) { p.min_p = bad; }), "min_p: ");
    ExpectRefused(Sampling([&](auto& p) { p.repetition_penalty = bad; }), "repetition_penalty: ");
  }
  for (const double bad : {kNan, kInf, -2.1, 2.1}) {
    ExpectRefused(Sampling([&](auto& p) { p.presence_penalty = bad; }), "presence_penalty: ");
    ExpectRefused(Sampling([&](auto& p) { p.frequency_penalty = bad; }), "frequency_penalty: ");
  }
  ExpectRefused(Sampling([](auto& p) { p.top_p = 0; }), "top_p: 0 is outside (0, 1]");
  ExpectRefused(Sampling([](auto& p) { p.repetition_penalty = 0; }), "repetition_penalty: 0");
  ExpectRefused(Sampling([](auto& p) { p.top_k = -2; }), "top_k: -2");
  ExpectRefused(Sampling([](auto& p) { p.logprobs = true, p.top_logprobs = 21; }),
                "top_logprobs: 21 is outside [0, 20]");
  ExpectRefused(Sampling([](auto& p) { p.top_logprobs = 3; }), "needs logprobs");
}

TEST(Validate, TopKOffValuesAreFine) {
  for (const int k : {-1, 0, 1, 1000000}) {
    EXPECT_TRUE(Sampling([&](auto& p) { p.top_k = k; }).ok()) << k;
  }
}

TEST(Validate, LogitBias) {
  EXPECT_TRUE(Sampling([](auto& p) { p.logit_bias = {{0, -100.f}, {99, 100.f}}; }).ok());
  ExpectRefused(Sampling([](auto& p) {
                  p.logit_bias = {{0, 1.f}, {100, 5.f}};
                }),
                "logit_bias[1]: token id 100 is outside the vocabulary [0, 99]");
  ExpectRefused(Sampling([](auto& p) { p.logit_bias = {{-1, 5.f}}; }), "logit_bias[0]");
  ExpectRefused(Sampling([](auto& p) { p.logit_bias = {{5, 1e9f}}; }), "outside [-100, 100]");
  ExpectRefused(Sampling([](auto& p) {
                  p.logit_bias = {{5, std::numeric_limits<float>::quiet_NaN()}};
                }),
                "logit_bias[0] (token 5)");
  SamplingParams unknown;
  unknown.logit_bias = {{191222, 1.f}};
  EXPECT_TRUE(ValidateSampling(unknown, {}).ok());
}

TEST(Validate, StopStrings) {
  ExpectRefused(Stop([](auto& p) { p.stop = {""}; }), "stop[0] is empty");
  ExpectRefused(Stop([](auto& p) { p.stop = {"END", ""}; }), "stop[1] is empty");
  EXPECT_TRUE(Stop([](auto& p) { p.stop = {std::string(1024, 'x')}; }).ok());
  ExpectRefused(Stop([](auto& p) { p.stop = {std::string(1025, 'x')}; }), "1025 bytes");
  EXPECT_TRUE(Stop([](auto& p) { p.stop.assign(16, "x"); }).ok());
  ExpectRefused(Stop([](auto& p) { p.stop.assign(17, "x"); }), "stop: 17 entries");
  ExpectRefused(Stop([](auto& p) { p.stop_token_ids = {3, 100}; }), "stop_token_ids[1]");
}

TEST(Validate, TokenCounts) {
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-5}, std::int64_t{1} << 40}) {
    ExpectRefused(Stop([&](auto& p) { p.max_tokens = bad; }), "max_tokens: ");
  }
  ExpectRefused(Stop([](auto& p) { p.min_tokens = -1; }), "min_tokens: -1");
  ExpectRefused(Stop([](auto& p) { p.min_tokens = 9; }), "min_tokens: 9 is outside [0, 8]");
}

TEST(Validate, ContextNamesThreeNumbers) {
  EXPECT_TRUE(CheckContext(2000, 48, 2048).ok());
  ExpectRefused(CheckContext(2000, 49, 2048),
                "2000 tokens + max_tokens 49 are over the context of "
                "2048");
  ExpectRefused(CheckContext(2049, 1, 2048), "prompt: 2049 tokens");
  ExpectRefused(CheckContext(2048, 1, 2048), "2048");
}

}  // namespace
}  // namespace baton
