#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <thread>

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(MetricsTest, CounterAndGaugeText) {
  MetricRegistry registry;
  Counter counter = registry.AddCounter("baton_requests_total", "Requests.");
  counter.Increment();
  counter.Increment(2);
  Gauge gauge = registry.AddGauge("baton_num_requests_running", "Running.");
  gauge.Set(5);
  gauge.Add(-2);
  const std::string text = registry.SerializeText();
  EXPECT_THAT(text, HasSubstr("# HELP baton_requests_total Requests.\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE baton_requests_total counter\n"));
  EXPECT_THAT(text, HasSubstr("\nbaton_requests_total 3\n"));
  EXPECT_THAT(text, HasSubstr("\nbaton_num_requests_running 3\n"));
}

TEST(MetricsTest, HistogramBucketsAreCumulative) {
  MetricRegistry registry;
  Histogram h = registry.AddHistogram("baton_x_seconds", "X.", {0.1, 1, 10});
  for (double v : {0.05, 0.5, 0.6, 100.0}) h.Observe(v);
  const std::string text = registry.SerializeText();
  EXPECT_THAT(text, HasSubstr("baton_x_seconds_bucket{le=\"0.1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_x_seconds_bucket{le=\"1\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("baton_x_seconds_bucket{le=\"10\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("baton_x_seconds_bucket{le=\"+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("baton_x_seconds_count 4\n"));
  EXPECT_EQ(h.Count(), 4u);
  EXPECT_DOUBLE_EQ(h.Sum(), 101.15);
}

// Case met-01: one impossible observation must not make the scrape invalid.
TEST(MetricsTest, ImpossibleValuesAreDroppedAndCounted) {
  MetricRegistry registry;
  Counter counter = registry.AddCounter("baton_a_total", "A.");
  Gauge gauge = registry.AddGauge("baton_b", "B.");
  Histogram h = registry.AddHistogram("baton_c_seconds", "C.");
  for (double v : {-1.0, kNan, kInf, -kInf}) {
    counter.Increment(v);
    h.Observe(v);
  }
  gauge.Set(kNan);
  gauge.Add(-kInf);
  EXPECT_EQ(counter.Value(), 0);
  EXPECT_EQ(gauge.Value(), 0);
  EXPECT_EQ(h.Count(), 0u);
  EXPECT_THAT(registry.SerializeText(), HasSubstr("\nbaton_metrics_rejected_total 10\n"));
}

TEST(MetricsTest, LabelsAreWrittenAndEscaped) {
  MetricRegistry registry;
  CounterFamily family =
      registry.AddCounterFamily("baton_handoff_failures_total", "F.", {"strategy", "lane"});
  family.With({"raw", "tcp"}).Increment();
  family.With({"a\"b\\c\nd", ""}).Increment();
  family.With({"raw", "tcp"}).Increment();
  const std::string text = registry.SerializeText();
  // Prometheus does not care about the order of labels; prometheus-cpp sorts them.
  EXPECT_THAT(text, HasSubstr("baton_handoff_failures_total{lane=\"tcp\",strategy=\"raw\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("strategy=\"a\\\"b\\\\c\\nd\""));
}

TEST(MetricsTest, LabelSetsOverTheLimitShareOneSeries) {
  MetricRegistry registry;
  CounterFamily family = registry.AddCounterFamily("baton_t_total", "T.", {"tenant"}, 2);
  for (int i = 0; i < 100; ++i) family.With({"tenant" + std::to_string(i)}).Increment();
  family.With({"tenant1"}).Increment();
  const std::string text = registry.SerializeText();
  EXPECT_THAT(text, HasSubstr("baton_t_total{tenant=\"tenant0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_t_total{tenant=\"tenant1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("baton_t_total{tenant=\"other\"} 98\n"));
  EXPECT_THAT(text, Not(HasSubstr("tenant2")));
}

TEST(MetricsTest, SameNameIsTheSameSeries) {
  MetricRegistry registry;
  registry.AddCounter("baton_a_total", "A.").Increment();
  registry.AddCounter("baton_a_total", "A.").Increment();
  EXPECT_THAT(registry.SerializeText(), HasSubstr("\nbaton_a_total 2\n"));
}

TEST(MetricsDeathTest, ProgrammerErrorsAbort) {
  MetricRegistry registry;
  registry.AddCounter("baton_a_total", "A.");
  EXPECT_DEATH(registry.AddGauge("baton_a_total", "A."), "already registered");
  EXPECT_DEATH(registry.AddCounter("requests_total", "A."), "baton_");
  EXPECT_DEATH(registry.AddCounter("baton_requests", "A."), "_total");
  EXPECT_DEATH(registry.AddGauge("baton_Bad-name", "A."), "does not match");
  EXPECT_DEATH(registry.AddGaugeFamily("baton_g", "A.", {"le"}), "label name");
  EXPECT_DEATH(registry.AddGaugeFamily("baton_g", "A.", {"x"}).With({}), "1 labels, got 0");
  EXPECT_DEATH(registry.AddHistogram("baton_h", "A.", {1, 1}), "do not rise");
}

TEST(MetricsTest, DefaultHandlesDoNothing) {
  Counter().Increment();
  Gauge().Set(1);
  Histogram().Observe(1);
  CounterFamily().With({"a", "b"}).Increment();
  EXPECT_EQ(Histogram().Count(), 0u);
}

TEST(MetricsTest, HandlesOutliveTheRegistry) {
  Counter counter;
  {
    MetricRegistry registry;
    counter = registry.AddCounter("baton_a_total", "A.");
  }
  counter.Increment();
  EXPECT_EQ(counter.Value(), 1);
}

TEST(MetricsTest, GaugeCallbackSaysWhatIsHeldNow) {
  MetricRegistry registry;
  int held = 3;
  {
    GaugeCallback callback =
        registry.AddGaugeCallback("baton_pages", "Pages.", [&] { return double(held); });
    EXPECT_THAT(registry.SerializeText(), HasSubstr("\nbaton_pages 3\n"));
    held = 7;
    GaugeCallback moved = std::move(callback);
    EXPECT_THAT(registry.SerializeText(), HasSubstr("\nbaton_pages 7\n"));
  }
  EXPECT_THAT(registry.SerializeText(), HasSubstr("\nbaton_pages 0\n"));
}

TEST(MetricsTest, TimerObservesOnce) {
  MetricRegistry registry;
  Histogram h = registry.AddHistogram("baton_step_seconds", "S.");
  ManualClock clock;
  {
    Timer timer(h, clock);
    clock.Advance(std::chrono::milliseconds(250));
    EXPECT_DOUBLE_EQ(timer.Stop(), 0.25);
    clock.Advance(std::chrono::seconds(1));
    EXPECT_DOUBLE_EQ(timer.Stop(), 0.25);
  }
  {
    Timer timer(h, clock);
    clock.Advance(std::chrono::milliseconds(500));
  }
  { Timer(h, clock).Cancel(); }
  EXPECT_EQ(h.Count(), 2u);
  EXPECT_DOUBLE_EQ(h.Sum(), 0.75);
}

TEST(MetricsTest, BucketsRise) {
  for (const auto* buckets :
       {&LatencyBuckets(), &ShortLatencyBuckets(), &ByteBuckets(), &CountBuckets()}) {
    for (size_t i = 1; i < buckets->size(); ++i) EXPECT_LT((*buckets)[i - 1], (*buckets)[i]);
  }
  EXPECT_EQ(ByteBuckets().back(), 64.0 * (1ull << 30));
  EXPECT_EQ(CountBuckets().back(), 1 << 20);
}

TEST(MetricsTest, ManyThreads) {
  MetricRegistry registry;
  CounterFamily family = registry.AddCounterFamily("baton_n_total", "N.", {"thread"}, 4);
  Histogram h = registry.AddHistogram("baton_h_seconds", "H.");
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        family.With({std::to_string(t)}).Increment();
        h.Observe(0.01);
        if (i % 50 == 0) {
          GaugeCallback c = registry.AddGaugeCallback("baton_g", "G.", [] { return 1.0; });
          registry.SerializeText();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(h.Count(), 1600u);
  double total = 0;
  std::istringstream lines(registry.SerializeText());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("baton_n_total{")) total += std::stod(line.substr(line.find('}') + 1));
  }
  EXPECT_EQ(total, 1600);
}

}  // namespace
}  // namespace baton
