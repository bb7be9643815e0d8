#include "common/scd/evaluate/evaluation.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/scd/evaluate/evaluation_report.h"
#include "common/scd/evaluate/html_report.h"
#include "common/tokenizer/model_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/scd/calibrate/tiny_pair.h"
#include "tests/common/scd/evaluate/well_formed.h"

namespace baton {
namespace {

using testing::HasSubstr;

// A tiny pair with a tokenizer, a codec, documents and questions.
class EvaluationTest : public testing::Test {
 protected:
  EvaluationTest() {
    WriteTinyLlama(dir_.File("model"));
    tokenizer_ = *ReadModelTokenizer(**ModelSource::Open(dir_.File("model")));
    options_.prefix = 192;
    options_.continuation = 32;
    options_.documents = 3;
    options_.selective_documents = 0;
    options_.max_answer = 4;
    options_.resamples = 50;
    texts_.documents = RandomDocuments(5, 224, 1);
    texts_.documents.files[0].path = "some <text>.txt";
    texts_.form.chat = *ChatTemplate::ByName("chatml");
    texts_.form.end = {kTinyImEnd};
    QuestionSet questions;
    questions.path = "q.jsonl";
    for (int g = 0; g < 2; ++g) {
      QuestionGroup group;
      for (int i = 0; i < 40; ++i) group.prefix.push_back((g * 31 + i * 7) % 256);
      for (int q = 0; q < 2; ++q) {
        Question question;
        question.skill = q == 0 ? "first" : "second";
        question.answer = "x";
        question.references = {"x"};
        question.suffix = {10 + q, 11, 12};
        question.answer_tokens = {'x', kTinyImEnd};
        group.questions.push_back(question);
        ++questions.questions;
      }
      questions.groups.push_back(group);
    }
    texts_.questions = std::move(questions);
  }

  static NamedCodec CodecOf(const TinyPair& tiny, const std::vector<LayerRun>& runs = {}) {
    CalibrationOptions o;
    o.runs = runs;
    o.bytes_per_token = 48;
    o.metric = Metric::kIdentity;
    o.epochs = 0;
    o.prefix = 96;
    o.continuation = 32;
    o.held_out = 1;
    SerialExecutor executor;
    auto result = Calibrate(tiny.pair(), RandomDocuments(6, 128, 2), o, executor);
    if (!result.ok()) throw std::runtime_error(result.status().ToString());
    return {"tuned", "tuned.safetensors", result->codec};
  }

  absl::StatusOr<Evaluation> Run(const TinyPair& tiny, const std::vector<NamedCodec>& codecs) {
    SerialExecutor executor;
    return Evaluate(tiny.pair(), codecs, texts_, *tokenizer_, options_, executor);
  }

  TempDir dir_;
  std::unique_ptr<Tokenizer> tokenizer_;
  EvaluationOptions options_;
  EvaluationTexts texts_;
};

TEST_F(EvaluationTest, EqualWeightsLoseNothingButRoundings) {
  const TinyPair tiny(0);
  const auto e = Run(tiny, {});
  ASSERT_TRUE(e.ok()) << e.status();
  ASSERT_EQ(e->ways.size(), 5U);  // raw, q4, 4, 3 and 2 bits
  const auto& rows = e->document_tables[0].rows;
  // fp16 moves a value by 2^-12 of it on average, so a logit of a few units by about 1e-3, and KL
  // is half its variance: 1e-6.
  EXPECT_LT(rows[0].kl, 1e-5);
  EXPECT_GE(rows[0].kl, -1e-9);
  EXPECT_GT(rows[1].kl, rows[0].kl);
  EXPECT_GT(rows[3].kl, rows[2].kl);
  EXPECT_GT(rows[4].kl, rows[3].kl);
  EXPECT_EQ(rows[0].kl_to_raw, 1);
  EXPECT_EQ(rows[0].kl_to_raw_95.high, 1);
  EXPECT_NEAR(rows[0].nll, e->document_tables[0].oracle_nll, 1e-3);
  // No rounding to 11 bits moves a normal number by more than 2^-11 of it.
  for (const double error : e->state_errors[0].keys) {
    EXPECT_GT(error, 0);
    EXPECT_LT(error, std::pow(2, -11));
  }
  for (std::size_t layer = 0; layer < 3; ++layer) {
    EXPECT_LT(e->state_errors[0].values[layer], std::pow(2, -11));
    EXPECT_GT(e->state_errors[4].values[layer], e->state_errors[3].values[layer]);
    EXPECT_GT(e->state_errors[4].hidden[layer], 0);
  }
  EXPECT_EQ(e->ways[0].bytes_per_token, 2 * 2 * 3 * 2 * 16);
  EXPECT_LT(e->ways[4].bytes_per_token, e->ways[3].bytes_per_token);
}

TEST_F(EvaluationTest, StateErrorsAreThoseOfTheModelsOwnStates) {
  TinyPair tiny(0.5f);
  options_.documents = 1;
  const auto e = Run(tiny, {});
  ASSERT_TRUE(e.ok()) << e.status();
  const Document& document =
      *PickDocuments(texts_.documents, 1, options_.prefix + options_.continuation, 0)[0];
  const std::vector<std::int32_t> prefix(document.tokens.begin(),
                                         document.tokens.begin() + e->documents[0].prefix);
  SerialExecutor executor;
  auto base = ModelProbe::Create(tiny.pair().producer, 192, executor);
  auto tuned = ModelProbe::Create(tiny.pair().consumer, 192, executor);
  ASSERT_TRUE(base.ok() && tuned.ok());
  (*base)->Start(prefix);
  (*tuned)->Start(prefix);
  for (int layer = 0; layer < 3; ++layer) {
    const LayerStates& theirs = (*base)->RunLayer(layer);
    const LayerStates& own = (*tuned)->RunLayer(layer);
    double sums[2][2] = {};  // [K, V][difference, own]
    for (std::int64_t r = 4; r < own.rows; ++r) {
      for (std::int64_t i = 0; i < 64; ++i) {
        const double y = own.kv[r * 64 + i], d = theirs.kv[r * 64 + i] - y;
        sums[i / 32][0] += d * d;
        sums[i / 32][1] += y * y;
      }
    }
    // A rotation keeps norms; fp16 moves what raw brings by 2^-11 at most.
    const auto l = static_cast<std::size_t>(layer);
    EXPECT_NEAR(e->state_errors[0].keys[l], std::sqrt(sums[0][0] / sums[0][1]), 1e-3);
    EXPECT_NEAR(e->state_errors[0].values[l], std::sqrt(sums[1][0] / sums[1][1]), 1e-3);
  }
}

TEST_F(EvaluationTest, CodesAreSweptAndCompared) {
  const TinyPair tiny(0.3f);
  const std::vector<NamedCodec> codecs = {CodecOf(tiny)};
  const auto e = Run(tiny, codecs);
  ASSERT_TRUE(e.ok()) << e.status();
  std::vector<double> rates;
  for (const WayInfo& w : e->ways) {
    if (w.family == "reuse:tuned") rates.push_back(w.bytes_per_token);
  }
  ASSERT_GE(rates.size(), 3U);
  EXPECT_EQ(rates[0], codecs[0].codec.bytes_per_token());
  EXPECT_TRUE(std::is_sorted(rates.rbegin(), rates.rend()));
  EXPECT_LE(rates.back(), 0.25 * rates[0]);
  EXPECT_EQ(e->document_tables.size(), 1U);  // of one file
  EXPECT_EQ(e->document_tables[0].documents, 3);
  std::int64_t predictions = 0;
  double kl = 0;
  for (const DocumentScore& d : e->documents) {
    predictions += d.predictions;
    kl += d.sums[1].kl;
  }
  EXPECT_EQ(e->document_tables[0].predictions, predictions);
  EXPECT_DOUBLE_EQ(e->document_tables[0].rows[0].kl, kl / static_cast<double>(predictions));
  for (const DocumentTable::Row& row : e->document_tables[0].rows) {
    EXPECT_NEAR(row.kl_to_raw, row.kl / e->document_tables[0].rows[0].kl, 1e-9);
    EXPECT_LE(row.kl_to_raw_95.low, row.kl_to_raw);
    EXPECT_GE(row.kl_to_raw_95.high, row.kl_to_raw);
  }

  // Questions: of the defaults alone.
  EXPECT_EQ(e->answer_ways, (std::vector<std::string>{"oracle", "raw", "q4", "reuse:tuned"}));
  ASSERT_EQ(e->answers.size(), 4U);
  ASSERT_EQ(e->answer_tables.size(), 3U);
  EXPECT_EQ(e->answer_tables[1].name, "first");
  EXPECT_EQ(e->answer_tables[1].questions, 2);
  EXPECT_EQ(e->answer_tables[0].rows[0].kl, 0);
  EXPECT_GT(e->answer_tables[0].rows[1].kl, 0);
}

TEST_F(EvaluationTest, ACodecWithARunSaysWhatItComputes) {
  const TinyPair tiny(0.3f);
  options_.selective_documents = 1;
  options_.documents = 2;
  const std::vector<NamedCodec> codecs = {CodecOf(tiny, {{1, 3}})};
  const auto e = Run(tiny, codecs);
  ASSERT_TRUE(e.ok()) << e.status();
  int with_run = 0, selective = 0;
  for (const WayInfo& w : e->ways) {
    SCOPED_TRACE(w.name);
    if (w.family == "reuse:tuned") {
      EXPECT_DOUBLE_EQ(w.compute, 2.0 / 3);
      EXPECT_LE(w.bytes_per_token, 48);
      ++with_run;
    } else if (w.family == "selective") {
      EXPECT_GE(w.compute, 1.0 / 3);
      ++selective;
    } else {
      EXPECT_EQ(w.compute, 0);
    }
  }
  EXPECT_GE(with_run, 3);  // whole and cut
  EXPECT_EQ(selective, 3);
  EXPECT_EQ(e->answer_ways.back(), "reuse:tuned");  // questions too, on longer prefixes
  const std::string json = EvaluationJson(*e), text = EvaluationMarkdown(*e);
  EXPECT_NE(json.find("\"compute\": 0.666"), std::string::npos);
  EXPECT_NE(text.find("compute"), std::string::npos);
  EXPECT_NE(text.find(" 0.67 |"), std::string::npos) << text;
}

// Against a plain forward pass over the whole conversation, token by token.
TEST_F(EvaluationTest, OracleAnswersAreTheConsumersOwn) {
  TinyPair tiny(0.5f);
  const ProbedModel& consumer = tiny.pair().consumer;
  const auto e = Run(tiny, {});
  ASSERT_TRUE(e.ok()) << e.status();
  SerialExecutor executor;
  ForwardPass pass(consumer.model, consumer.adapters, executor);
  const auto logits_after = [&](const std::vector<std::int32_t>& tokens) {
    const auto n = static_cast<std::int32_t>(tokens.size());
    auto sequence = SingleSequence::Create(consumer.model->config(), DType::kF32, n);
    std::vector<std::int32_t> positions(tokens.size());
    for (std::int32_t i = 0; i < n; ++i) positions[static_cast<std::size_t>(i)] = i;
    const SequenceSlice slice{0, n, &(*sequence)->view(), consumer.adapter};
    float* h = pass.Embed(tokens);
    pass.RunLayers(0, 3, h, {.positions = positions, .sequences = {&slice, 1}}, nullptr);
    const std::int32_t last = n - 1;
    const float* logits = pass.Logits(h, {&last, 1});
    return std::vector<float>(logits, logits + 512);
  };
  const auto nll_of = [](const std::vector<float>& logits, std::int32_t target) {
    double sum = 0;
    for (const float l : logits) sum += std::exp(static_cast<double>(l));
    return std::log(sum) - logits[static_cast<std::size_t>(target)];
  };
  std::size_t at = 0;
  for (const QuestionGroup& group : texts_.questions->groups) {
    for (const Question& question : group.questions) {
      std::vector<std::int32_t> asked = group.prefix;
      asked.insert(asked.end(), question.suffix.begin(), question.suffix.end());
      std::vector<std::int32_t> taught = asked;
      double nll = 0;
      for (const std::int32_t token : question.answer_tokens) {
        nll += nll_of(logits_after(taught), token);
        taught.push_back(token);
      }
      std::vector<std::int32_t> said;
      while (said.size() < 4) {
        const std::vector<float> logits = logits_after(asked);
        const auto next = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                                    logits.begin());
        if (next == kTinyImEnd) break;
        said.push_back(next);
        asked.push_back(next);
      }
      const AnsweredQuestion& answered = e->answers[at++];
      // fp32 sums in another order.
      EXPECT_NEAR(answered.answers[0].sums.nll, nll, 1e-4);
      EXPECT_THAT(*tokenizer_->Decode(said, {.skip_special = true}),
                  HasSubstr(answered.answers[0].text));
      // It has said nothing else: equal weights would give the same.
      EXPECT_EQ(answered.answers.size(), 3U);
    }
  }
}

TEST_F(EvaluationTest, ThreadsChangeNothingAndSeedsDo) {
  const TinyPair tiny(0.3f);
  options_.documents = 2;
  const auto one = Run(tiny, {});
  const auto pool = MakeThreadPool(3);
  const auto two = Evaluate(tiny.pair(), {}, texts_, *tokenizer_, options_, *pool);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(EvaluationJson(*one), EvaluationJson(*two));
  options_.seed = 5;
  EXPECT_NE(EvaluationJson(*one), EvaluationJson(*Run(tiny, {})));
}

TEST_F(EvaluationTest, ReportsAreWellFormed) {
  const TinyPair tiny(0.3f);
  const auto e = Run(tiny, {CodecOf(tiny)});
  ASSERT_TRUE(e.ok());
  const auto json = nlohmann::json::parse(EvaluationJson(*e));
  EXPECT_EQ(json["format"], "baton-evaluation-scd");
  EXPECT_EQ(json["texts"]["files"][0]["path"], "some <text>.txt");
  EXPECT_EQ(json["ways"].size(), e->ways.size());
  EXPECT_EQ(json["documents"][0]["oracle_then_ways"].size(), e->ways.size() + 1);
  EXPECT_EQ(json["questions"].size(), 4U);
  const std::string html = EvaluationHtml(*e);
  EXPECT_TRUE(IsWellFormed(html));
  EXPECT_THAT(html, HasSubstr("some &lt;text&gt;.txt"));
  EXPECT_THAT(html, testing::Not(HasSubstr("<script")));
  EXPECT_THAT(html, testing::Not(HasSubstr("src=")));
  for (const TextTable& table : EvaluationTables(*e)) {
    for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.head.size()) << table.title;
    std::set<std::size_t> widths;
    const std::string text = MarkdownTable(table);
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      widths.insert(text.find('\n', at) - at);
    }
    EXPECT_EQ(widths.size(), 1U) << text;
  }
  EXPECT_THAT(EvaluationMarkdown(*e), HasSubstr("## Questions: first"));
}

TEST_F(EvaluationTest, WhatIsWrongIsNamed) {
  const TinyPair tiny(0.3f);
  NamedCodec other = CodecOf(tiny);
  other.codec.identity.consumer_weights = "another";
  EXPECT_THAT(std::string(Run(tiny, {other}).status().message()),
              HasSubstr("tuned.safetensors: consumer_weights: another; this pair has tuned"));
  options_.cuts = {1.5};
  EXPECT_THAT(std::string(Run(tiny, {}).status().message()), HasSubstr("cuts: 1.5"));
  options_.cuts = {0.5};
  options_.prefix = 4000;
  EXPECT_THAT(std::string(Run(tiny, {}).status().message()), HasSubstr("prefix: 4000"));
  options_.prefix = 192;
  texts_.documents.documents[0].tokens[5] = 512;
  EXPECT_THAT(std::string(Run(tiny, {}).status().message()), HasSubstr("token 512"));
}

TEST(PickDocumentsTest, EachFileGivesItsLongestInTurn) {
  DocumentSet set;
  set.files.resize(2);
  for (const int length : {70, 300, 90, 200, 250, 80}) {
    Document d;
    d.file = length >= 200 && length < 300 ? 1 : 0;
    d.tokens.resize(static_cast<std::size_t>(length));
    set.documents.push_back(d);
  }
  const auto picked = PickDocuments(set, 4, 200, 1);
  ASSERT_EQ(picked.size(), 4U);
  EXPECT_EQ(picked[0]->tokens.size(), 300U);
  EXPECT_EQ(picked[1]->file, 1U);
  EXPECT_EQ(picked[2]->tokens.size(), 90U);
  EXPECT_EQ(picked[3]->file, 1U);
  EXPECT_EQ(PickDocuments(set, 0, 200, 1).size(), 6U);
}

}  // namespace
}  // namespace baton
