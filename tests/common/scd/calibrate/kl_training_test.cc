#include "common/scd/calibrate/kl_training.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_codec.h"
#include "tests/support/tiny_model.h"

namespace baton {
namespace {

using testing::HasSubstr;

class KlTrainingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const TinyLlama shape{.layers = 2, .vocab = 300};
    for (const auto& [name, seed] : {std::pair("producer", 1u), {"consumer", 2u}}) {
      TinyLlama of = shape;
      of.seed = seed;
      WriteTinyLlama(dir_.File(name), of);
      const auto source = ModelSource::Open(dir_.File(name));
      ASSERT_TRUE(source.ok()) << source.status();
      auto model = Model::Load(**source, {.executor = &executor_});
      ASSERT_TRUE(model.ok()) << model.status();
      (seed == 1 ? producer_ : consumer_).model = *std::move(model);
    }
    for (std::int32_t d = 0; d < 20; ++d) {
      Document document;
      for (std::int32_t i = 0; i < 96; ++i) {
        document.tokens.push_back(32 + (i * (d + 3) + i / 7) % 90);
      }
      texts_.push_back(document);
    }
    for (const Document& d : texts_) documents_.push_back(&d);
    options_.rank = 64;
    options_.epochs = 3;
    options_.batch = 2;
    options_.learning_rate = 5e-3;
    options_.prefix = 64;
    options_.continuation = 32;
    options_.judges = 4;
    options_.seed = 5;
  }

  // The producer's K/V as the consumer's: what training starts from.
  Codec Start() {
    return TinyCodec(dir_.File("producer"), CodeSource::kHidden, dir_.File("producer"), "t");
  }

  TempDir dir_;
  SerialExecutor executor_;
  ProbedModel producer_;
  ProbedModel consumer_;
  std::vector<Document> texts_;
  std::vector<const Document*> documents_;
  KlTrainingOptions options_;
};

TEST_F(KlTrainingTest, TheConsumerUnderstandsMore) {
  const Codec start = Start();
  const auto result = TrainDecoder(producer_, consumer_, start, documents_, options_, executor_);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->judged_kl.size(), 4u);
  ASSERT_EQ(result->learned_kl.size(), 3u);
  EXPECT_LT(result->judged_kl.back(), 0.8 * result->judged_kl.front());
  EXPECT_LT(result->learned_kl.back(), result->learned_kl.front());
  // Codes are what they were: the same encoder serves.
  EXPECT_EQ(result->codec.EncoderDigest(), start.EncoderDigest());
  EXPECT_NE(result->codec.Digest(), start.Digest());
  EXPECT_TRUE(CheckCodec(result->codec).ok());
}

// Through the consumer's own projection, with an MLP that begins as nothing.
TEST_F(KlTrainingTest, PatchedLayersAreTrainedToo) {
  const Codec start =
      TinyCodec(dir_.File("producer"), CodeSource::kHidden, dir_.File("producer"), "t", {0, 1});
  const auto result = TrainDecoder(producer_, consumer_, start, documents_, options_, executor_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LT(result->judged_kl.back(), 0.8 * result->judged_kl.front());
  EXPECT_TRUE(CheckCodec(result->codec).ok()) << CheckCodec(result->codec);
  EXPECT_EQ(result->codec.EncoderDigest(), start.EncoderDigest());
  for (const CodecLayer& layer : result->codec.layers) {
    EXPECT_EQ(layer.kind, LayerKind::kPatch);
    EXPECT_TRUE(
        std::any_of(layer.mlp_out.begin(), layer.mlp_out.end(), [](float x) { return x != 0; }));
  }
}

TEST_F(KlTrainingTest, SameSeedSameCodec) {
  options_.epochs = 1;
  const Codec start = Start();
  const auto one = TrainDecoder(producer_, consumer_, start, documents_, options_, executor_);
  const auto two = TrainDecoder(producer_, consumer_, start, documents_, options_, executor_);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(one->codec.Digest(), two->codec.Digest());
  EXPECT_EQ(one->judged_kl, two->judged_kl);
}

// Nothing to gain: the start is what stays.
TEST_F(KlTrainingTest, ACodecThatIsRightIsLeftAlone) {
  const Codec start = Start();
  options_.epochs = 1;
  options_.learning_rate = 0.5;
  const auto result = TrainDecoder(producer_, producer_, start, documents_, options_, executor_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LT(result->judged_kl.front(), 1e-3);
  EXPECT_GT(result->judged_kl.back(), result->judged_kl.front());
  EXPECT_EQ(result->codec.Digest(), start.Digest());
}

TEST_F(KlTrainingTest, TooFewDocumentsAreRefused) {
  const auto result = TrainDecoder(producer_, consumer_, Start(),
                                   absl::MakeConstSpan(documents_).first(4), options_, executor_);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("documents: 4, of which 4 choose"));
}

TEST_F(KlTrainingTest, GoesOnWhereItWasCutShort) {
  const Codec start = Start();
  const auto whole = TrainDecoder(producer_, consumer_, start, documents_, options_, executor_);
  ASSERT_TRUE(whole.ok()) << whole.status();

  options_.checkpoint = dir_.File("a.training");
  // Cut short in the third epoch: the file of the second one is there.
  struct Cut {};
  options_.progress = [](std::string_view stage, std::int64_t, std::int64_t) {
    if (stage.find("epoch 3") != std::string_view::npos) throw Cut();
  };
  EXPECT_THROW((void)TrainDecoder(producer_, consumer_, start, documents_, options_, executor_),
               Cut);
  ASSERT_TRUE(std::filesystem::exists(options_.checkpoint));
  int epochs = 0;
  options_.progress = [&](std::string_view stage, std::int64_t done, std::int64_t total) {
    if (stage.find("epoch") != std::string_view::npos && done == total) ++epochs;
  };
  const auto resumed = TrainDecoder(producer_, consumer_, start, documents_, options_, executor_);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(epochs, 1);
  EXPECT_EQ(resumed->judged_kl, whole->judged_kl);
  EXPECT_EQ(resumed->learned_kl, whole->learned_kl);
  EXPECT_EQ(resumed->codec.Digest(), whole->codec.Digest());

  // Of another training, or no checkpoint at all: from the start.
  options_.seed = 6;
  epochs = 0;
  ASSERT_TRUE(TrainDecoder(producer_, consumer_, start, documents_, options_, executor_).ok());
  EXPECT_EQ(epochs, 3);
  dir_.Write("a.training", "torn");
  epochs = 0;
  ASSERT_TRUE(TrainDecoder(producer_, consumer_, start, documents_, options_, executor_).ok());
  EXPECT_EQ(epochs, 3);
  options_.checkpoint = dir_.File("no/such/folder/a.training");
  const auto unwritable =
      TrainDecoder(producer_, consumer_, start, documents_, options_, executor_);
  EXPECT_EQ(unwritable.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(unwritable.status().message()), HasSubstr("a.training"));
}

}  // namespace
}  // namespace baton
