// Prometheus metrics over prometheus-cpp's core; serving the text over HTTP is the caller's.
//
//   MetricRegistry registry;
//   Counter served = registry.AddCounter("baton_requests_total", "Requests served.");
//   CounterFamily failures = registry.AddCounterFamily("baton_handoff_failures_total",
//       "Failed hand-offs.", {"strategy", "lane"});
//   failures.With({"raw", "tcp"}).Increment();
//   { Timer timer(latency); Step(); }               // observes seconds
//
// Handles are cheap to copy, thread-safe, keep the registry's data alive, and do nothing when
// default-constructed. Asking again for the same name gives the same series. Impossible values
// (NaN, infinite, negative for counters and histograms) are dropped and counted in
// baton_metrics_rejected_total, because one of them makes a whole scrape invalid. Wrong names,
// a name asked for with another type or other labels, and a wrong number of label values are
// programmer errors and abort.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace baton {

namespace metrics_internal {
struct RegistryState;
struct FamilyState;
}  // namespace metrics_internal

class Counter {
 public:
  Counter() = default;
  void Increment(double by = 1);  // >= 0
  double Value() const;

 private:
  friend class CounterFamily;
  std::shared_ptr<metrics_internal::RegistryState> registry_;
  prometheus::Counter* impl_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  void Set(double value);
  void Add(double by);  // may be negative
  double Value() const;

 private:
  friend class GaugeFamily;
  friend class MetricRegistry;
  std::shared_ptr<metrics_internal::RegistryState> registry_;
  prometheus::Gauge* impl_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  void Observe(double value);  // >= 0
  uint64_t Count() const;
  double Sum() const;

 private:
  friend class HistogramFamily;
  std::shared_ptr<metrics_internal::RegistryState> registry_;
  prometheus::Histogram* impl_ = nullptr;
};

// Label sets over the family's limit all go to one series whose label values are "other".
inline constexpr size_t kDefaultMaxSeries = 128;

class CounterFamily {
 public:
  CounterFamily() = default;
  Counter With(const std::vector<std::string>& label_values) const;

 private:
  friend class MetricRegistry;
  std::shared_ptr<metrics_internal::RegistryState> registry_;
  metrics_internal::FamilyState* family_ = nullptr;
};

class GaugeFamily {
 public:
  GaugeFamily() = default;
  Gauge With(const std::vector<std::string>& label_values) const;

 private:
  friend class MetricRegistry;
  std::shared_ptr<metrics_internal::RegistryState> registry_;
  metrics_internal::FamilyState* family_ = nullptr;
};

class HistogramFamily {
 public:
  HistogramFamily() = default;
  Histogram With(const std::vector<std::string>& label_values) const;

 private:
  friend class MetricRegistry;
  std::shared_ptr<metrics_internal::RegistryState> registry_;
  metrics_internal::FamilyState* family_ = nullptr;
};

// Keeps a gauge callback registered; after its destruction the callback neither runs nor is
// running.
class [[nodiscard]] GaugeCallback {
 public:
  GaugeCallback() = default;
  GaugeCallback(GaugeCallback&& other) noexcept;
  GaugeCallback& operator=(GaugeCallback&& other) noexcept;
  ~GaugeCallback();

 private:
  friend class MetricRegistry;
  void Reset();
  std::shared_ptr<metrics_internal::RegistryState> registry_;
  uint64_t id_ = 0;
};

// Upper bounds in seconds: 1 ms to 10 min, for request latencies.
const std::vector<double>& LatencyBuckets();
// 10 us to 10 s, for steps and inter-token times.
const std::vector<double>& ShortLatencyBuckets();
// 1 KiB to 64 GiB, powers of 4.
const std::vector<double>& ByteBuckets();
// 1 to 1 Mi, powers of 2: tokens, batch sizes.
const std::vector<double>& CountBuckets();

// Copies share one registry.
class MetricRegistry {
 public:
  MetricRegistry();

  // Names match baton_[a-z0-9_]+; counters end in _total.
  Counter AddCounter(const std::string& name, const std::string& help);
  Gauge AddGauge(const std::string& name, const std::string& help);
  Histogram AddHistogram(const std::string& name, const std::string& help,
                         const std::vector<double>& buckets = LatencyBuckets());
  CounterFamily AddCounterFamily(const std::string& name, const std::string& help,
                                 const std::vector<std::string>& labels,
                                 size_t max_series = kDefaultMaxSeries);
  GaugeFamily AddGaugeFamily(const std::string& name, const std::string& help,
                             const std::vector<std::string>& labels,
                             size_t max_series = kDefaultMaxSeries);
  HistogramFamily AddHistogramFamily(const std::string& name, const std::string& help,
                                     const std::vector<std::string>& labels,
                                     const std::vector<double>& buckets = LatencyBuckets(),
                                     size_t max_series = kDefaultMaxSeries);
  // A gauge whose value is asked for at each scrape, so that it says what is held at that moment.
  // Without its callback the gauge stands at 0.
  // `value` is called under the registry's callback lock: it may take its owner's lock, but must
  // not call the registry.
  GaugeCallback AddGaugeCallback(const std::string& name, const std::string& help,
                                 std::function<double()> value);
  // The same for one series of a family of this registry.
  GaugeCallback AddGaugeCallback(Gauge gauge, std::function<double()> value);

  // Prometheus text exposition format 0.0.4 of everything registered.
  std::string SerializeText() const;

 private:
  std::shared_ptr<metrics_internal::RegistryState> state_;
};

// Observes the seconds from construction to Stop() or destruction, once.
class Timer {
 public:
  explicit Timer(Histogram histogram, const Clock& clock = Clock::Real());
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  double Stop();  // observes now and returns the seconds; later calls return the same
  void Cancel();  // observes nothing
  double Seconds() const;

 private:
  Histogram histogram_;
  const Clock& clock_;
  const std::chrono::nanoseconds start_;
  bool running_ = true;
  double seconds_ = 0;
};

}  // namespace baton
