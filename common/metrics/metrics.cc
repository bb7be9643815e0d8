#include "common/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "common/base/logging.h"
#include "common/base/mutex.h"

namespace baton {
namespace metrics_internal {

enum class MetricKind { kCounter, kGauge, kHistogram };

struct FamilyState {
  // Constant after construction.
  MetricKind kind = MetricKind::kCounter;
  std::string name;
  std::vector<std::string> labels;
  std::vector<double> buckets;
  size_t max_series = 0;
  prometheus::Family<prometheus::Counter>* counters = nullptr;
  prometheus::Family<prometheus::Gauge>* gauges = nullptr;
  prometheus::Family<prometheus::Histogram>* histograms = nullptr;

  Mutex mu;
  std::set<std::vector<std::string>> series GUARDED_BY(mu);
};

struct RegistryState {
  prometheus::Registry registry;  // own locking
  prometheus::Counter* rejected = nullptr;

  Mutex mu;
  std::map<std::string, std::unique_ptr<FamilyState>> families GUARDED_BY(mu);

  // Held while callbacks run, so that unregistering waits for them.
  Mutex callback_mu;
  struct Callback {
    prometheus::Gauge* gauge;
    std::function<double()> value;
  };
  std::map<uint64_t, Callback> callbacks GUARDED_BY(callback_mu);
  uint64_t next_callback GUARDED_BY(callback_mu) = 1;
};

}  // namespace metrics_internal

namespace {

using metrics_internal::FamilyState;
using metrics_internal::MetricKind;
using metrics_internal::RegistryState;

[[noreturn]] void Die(const std::string& message) {
  BATON_LOG_ERROR("metrics: {}", message);
  std::abort();
}

bool IsWord(const std::string& text) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  for (const char c : text) {
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
  }
  return true;
}

void CheckNames(MetricKind kind, const std::string& name, const std::vector<std::string>& labels) {
  if (!name.starts_with("baton_") || !IsWord(name)) {
    Die("name '" + name + "' does not match baton_[a-z0-9_]+");
  }
  if (kind == MetricKind::kCounter && !name.ends_with("_total")) {
    Die("counter '" + name + "' does not end in _total");
  }
  for (const std::string& label : labels) {
    if (!IsWord(label) || label.starts_with("__") || label == "le") {
      Die("'" + label + "' of " + name + " is not a label name");
    }
  }
}

FamilyState* FindOrAdd(RegistryState& state, MetricKind kind, const std::string& name,
                       const std::string& help, const std::vector<std::string>& labels,
                       const std::vector<double>& buckets, size_t max_series) {
  CheckNames(kind, name, labels);
  MutexLock lock(state.mu);
  std::unique_ptr<FamilyState>& family = state.families[name];
  if (family != nullptr) {
    if (family->kind != kind || family->labels != labels || family->buckets != buckets) {
      Die(name + " is already registered with another type, labels or buckets");
    }
    return family.get();
  }
  family = std::make_unique<FamilyState>();
  family->kind = kind;
  family->name = name;
  family->labels = labels;
  family->buckets = buckets;
  family->max_series = max_series;
  switch (kind) {
    case MetricKind::kCounter:
      family->counters = &prometheus::BuildCounter().Name(name).Help(help).Register(state.registry);
      break;
    case MetricKind::kGauge:
      family->gauges = &prometheus::BuildGauge().Name(name).Help(help).Register(state.registry);
      break;
    case MetricKind::kHistogram:
      family->histograms =
          &prometheus::BuildHistogram().Name(name).Help(help).Register(state.registry);
      break;
  }
  return family.get();
}

prometheus::Labels BoundedLabels(FamilyState& family, std::vector<std::string> values) {
  if (values.size() != family.labels.size()) {
    Die(fmt::format("{} has {} labels, got {} values", family.name, family.labels.size(),
                    values.size()));
  }
  {
    MutexLock lock(family.mu);
    if (!family.series.contains(values)) {
      if (family.series.size() < family.max_series || values.empty()) {
        family.series.insert(values);
      } else {
        values.assign(values.size(), "other");
      }
    }
  }
  prometheus::Labels labels;
  for (size_t i = 0; i < values.size(); ++i) labels.emplace(family.labels[i], values[i]);
  return labels;
}

bool Possible(const RegistryState& state, double value, bool negative_too) {
  if (std::isfinite(value) && (negative_too || value >= 0)) return true;
  state.rejected->Increment();
  return false;
}

std::vector<double> Powers(double first, double factor, int count) {
  std::vector<double> bounds;
  for (int i = 0; i < count; ++i, first *= factor) bounds.push_back(first);
  return bounds;
}

}  // namespace

void Counter::Increment(double by) {
  if (impl_ != nullptr && Possible(*registry_, by, false)) impl_->Increment(by);
}
double Counter::Value() const { return impl_ == nullptr ? 0 : impl_->Value(); }

void Gauge::Set(double value) {
  if (impl_ != nullptr && Possible(*registry_, value, true)) impl_->Set(value);
}
void Gauge::Add(double by) {
  if (impl_ != nullptr && Possible(*registry_, by, true)) impl_->Increment(by);
}
double Gauge::Value() const { return impl_ == nullptr ? 0 : impl_->Value(); }

void Histogram::Observe(double value) {
  if (impl_ != nullptr && Possible(*registry_, value, false)) impl_->Observe(value);
}
uint64_t Histogram::Count() const {
  return impl_ == nullptr ? 0 : impl_->Collect().histogram.sample_count;
}
double Histogram::Sum() const {
  return impl_ == nullptr ? 0 : impl_->Collect().histogram.sample_sum;
}

Counter CounterFamily::With(const std::vector<std::string>& label_values) const {
  Counter counter;
  if (family_ == nullptr) return counter;
  counter.impl_ = &family_->counters->Add(BoundedLabels(*family_, label_values));
  counter.registry_ = registry_;
  return counter;
}

Gauge GaugeFamily::With(const std::vector<std::string>& label_values) const {
  Gauge gauge;
  if (family_ == nullptr) return gauge;
  gauge.impl_ = &family_->gauges->Add(BoundedLabels(*family_, label_values));
  gauge.registry_ = registry_;
  return gauge;
}

Histogram HistogramFamily::With(const std::vector<std::string>& label_values) const {
  Histogram histogram;
  if (family_ == nullptr) return histogram;
  histogram.impl_ =
      &family_->histograms->Add(BoundedLabels(*family_, label_values), family_->buckets);
  histogram.registry_ = registry_;
  return histogram;
}

GaugeCallback::GaugeCallback(GaugeCallback&& other) noexcept
    : registry_(std::move(other.registry_)), id_(std::exchange(other.id_, 0)) {}

GaugeCallback& GaugeCallback::operator=(GaugeCallback&& other) noexcept {
  if (this != &other) {
    Reset();
    registry_ = std::move(other.registry_);
    id_ = std::exchange(other.id_, 0);
  }
  return *this;
}

GaugeCallback::~GaugeCallback() { Reset(); }

void GaugeCallback::Reset() {
  if (registry_ == nullptr || id_ == 0) return;
  MutexLock lock(registry_->callback_mu);
  const auto it = registry_->callbacks.find(std::exchange(id_, 0));
  if (it == registry_->callbacks.end()) return;
  it->second.gauge->Set(0);
  registry_->callbacks.erase(it);
}

const std::vector<double>& LatencyBuckets() {
  static const auto* buckets =
      new std::vector<double>{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                              2.5,   5,      10,    20,   40,    60,   120, 300,  600};
  return *buckets;
}

const std::vector<double>& ShortLatencyBuckets() {
  static const auto* buckets = new std::vector<double>{
      0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
      0.025,   0.05,     0.1,     0.25,   0.5,     1,      2.5,   5,      10};
  return *buckets;
}

const std::vector<double>& ByteBuckets() {
  static const auto* buckets = new std::vector<double>(Powers(1024, 4, 14));
  return *buckets;
}

const std::vector<double>& CountBuckets() {
  static const auto* buckets = new std::vector<double>(Powers(1, 2, 21));
  return *buckets;
}

MetricRegistry::MetricRegistry() : state_(std::make_shared<RegistryState>()) {
  state_->rejected = &FindOrAdd(*state_, MetricKind::kCounter, "baton_metrics_rejected_total",
                                "Impossible values that were dropped.", {}, {}, 1)
                          ->counters->Add({});
}

Counter MetricRegistry::AddCounter(const std::string& name, const std::string& help) {
  return AddCounterFamily(name, help, {}).With({});
}

Gauge MetricRegistry::AddGauge(const std::string& name, const std::string& help) {
  return AddGaugeFamily(name, help, {}).With({});
}

Histogram MetricRegistry::AddHistogram(const std::string& name, const std::string& help,
                                       const std::vector<double>& buckets) {
  return AddHistogramFamily(name, help, {}, buckets).With({});
}

CounterFamily MetricRegistry::AddCounterFamily(const std::string& name, const std::string& help,
                                               const std::vector<std::string>& labels,
                                               size_t max_series) {
  CounterFamily family;
  family.registry_ = state_;
  family.family_ = FindOrAdd(*state_, MetricKind::kCounter, name, help, labels, {}, max_series);
  return family;
}

GaugeFamily MetricRegistry::AddGaugeFamily(const std::string& name, const std::string& help,
                                           const std::vector<std::string>& labels,
                                           size_t max_series) {
  GaugeFamily family;
  family.registry_ = state_;
  family.family_ = FindOrAdd(*state_, MetricKind::kGauge, name, help, labels, {}, max_series);
  return family;
}

HistogramFamily MetricRegistry::AddHistogramFamily(const std::string& name, const std::string& help,
                                                   const std::vector<std::string>& labels,
                                                   const std::vector<double>& buckets,
                                                   size_t max_series) {
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!std::isfinite(buckets[i]) || (i > 0 && buckets[i] <= buckets[i - 1])) {
      Die("buckets of " + name + " do not rise");
    }
  }
  HistogramFamily family;
  family.registry_ = state_;
  family.family_ =
      FindOrAdd(*state_, MetricKind::kHistogram, name, help, labels, buckets, max_series);
  return family;
}

GaugeCallback MetricRegistry::AddGaugeCallback(const std::string& name, const std::string& help,
                                               std::function<double()> value) {
  return AddGaugeCallback(AddGauge(name, help), std::move(value));
}

GaugeCallback MetricRegistry::AddGaugeCallback(Gauge gauge, std::function<double()> value) {
  GaugeCallback callback;
  if (gauge.impl_ == nullptr || value == nullptr) return callback;
  MutexLock lock(state_->callback_mu);
  callback.registry_ = state_;
  callback.id_ = state_->next_callback++;
  state_->callbacks.emplace(callback.id_, RegistryState::Callback{gauge.impl_, std::move(value)});
  return callback;
}

std::string MetricRegistry::SerializeText() const {
  {
    MutexLock lock(state_->callback_mu);
    for (const auto& [id, callback] : state_->callbacks) {
      const double value = callback.value();
      if (Possible(*state_, value, true)) callback.gauge->Set(value);
    }
  }
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

Timer::Timer(Histogram histogram, const Clock& clock)
    : histogram_(std::move(histogram)), clock_(clock), start_(clock.Now()) {}

Timer::~Timer() { Stop(); }

double Timer::Seconds() const {
  if (!running_) return seconds_;
  return std::chrono::duration<double>(clock_.Now() - start_).count();
}

double Timer::Stop() {
  if (!running_) return seconds_;
  seconds_ = Seconds();
  running_ = false;
  histogram_.Observe(seconds_);
  return seconds_;
}

void Timer::Cancel() {
  seconds_ = Seconds();
  running_ = false;
}

}  // namespace baton
