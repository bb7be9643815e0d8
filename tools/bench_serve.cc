// `baton bench serve`: load on a router over gRPC, in a closed loop or as Poisson arrivals.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/progress.h"
#include "common/base/utf8.h"
#include "nlohmann/json.hpp"
#include "spdlog/fmt/fmt.h"
#include "tools/commands.h"
#include "tools/inference_client.h"
#include "tools/latency_stats.h"

namespace baton::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  std::string router = "127.0.0.1:8090";
  std::string api_key;
  std::string model;
  std::string strategy;
  int requests = 50;
  int concurrency = 4;
  double rate = 0;  // requests per second; 0: closed loop
  int prompt_tokens = 512;
  int shared_tokens = 0;
  int output_tokens = 32;
  std::uint64_t seed = 1;
  int timeout_s = 120;
  std::string text_file;
  std::string json_file;
};

struct Results {
  Mutex mu;
  std::vector<double> ttft GUARDED_BY(mu);
  std::vector<double> itl GUARDED_BY(mu);
  std::vector<double> e2e GUARDED_BY(mu);
  std::vector<std::string> errors GUARDED_BY(mu);
  std::int64_t prompt_tokens GUARDED_BY(mu) = 0;
  std::int64_t output_tokens GUARDED_BY(mu) = 0;
  std::int64_t cached_tokens GUARDED_BY(mu) = 0;
  std::int64_t transferred_tokens GUARDED_BY(mu) = 0;
};

void Record(const absl::StatusOr<GenerationRecord>& got, Results& results) {
  const Clock::time_point now = Clock::now();
  MutexLock lock(results.mu);
  if (!got.ok()) {
    results.errors.push_back(got.status().ToString());
    return;
  }
  results.e2e.push_back(Seconds(now - got->sent));
  if (!got->deltas.empty()) results.ttft.push_back(Seconds(got->deltas.front() - got->sent));
  for (std::size_t i = 1; i < got->deltas.size(); ++i) {
    // A delta of several tokens counts once per token, each with its share of the gap.
    const int tokens = got->delta_tokens[i];
    const double gap = Seconds(got->deltas[i] - got->deltas[i - 1]) / tokens;
    results.itl.insert(results.itl.end(), static_cast<std::size_t>(tokens), gap);
  }
  const v1::Usage& usage = got->finished.usage();
  results.prompt_tokens += usage.prompt_tokens();
  results.output_tokens += usage.completion_tokens();
  results.cached_tokens += usage.cached_tokens();
  results.transferred_tokens += usage.transferred_tokens();
}

// Prompts of exactly `prompt_tokens` ids: a shared start, then text from another place of the
// source for each request.
class PromptMaker {
 public:
  PromptMaker(std::vector<std::int64_t> ids, const BenchOptions& o) : ids_(std::move(ids)), o_(o) {}

  v1::GenerateRequest Make(int index) const {
    v1::GenerateRequest request;
    request.set_model(o_.model);
    request.set_strategy(o_.strategy);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stop()->set_max_tokens(o_.output_tokens);
    request.mutable_stop()->set_ignore_eos(true);
    if (o_.shared_tokens > 0) {
      request.set_shared_prefix_tokens(static_cast<std::uint32_t>(o_.shared_tokens));
    }
    auto* out = request.mutable_tokens()->mutable_ids();
    for (int i = 0; i < o_.shared_tokens; ++i) out->Add(At(i));
    std::mt19937_64 rng(o_.seed * 1'000'003 + static_cast<std::uint64_t>(index));
    const std::size_t start = rng() % ids_.size();
    for (int i = o_.shared_tokens; i < o_.prompt_tokens; ++i) {
      out->Add(At(start + static_cast<std::size_t>(i)));
    }
    return request;
  }

 private:
  std::int64_t At(std::size_t i) const { return ids_[i % ids_.size()]; }
  const std::vector<std::int64_t> ids_;
  const BenchOptions o_;
};

void RunClosedLoop(InferenceClient& client, const PromptMaker& prompts, const BenchOptions& o,
                   Results& results, Progress& progress) {
  std::atomic<int> next{0};
  std::atomic<std::int64_t> done{0};
  const int count = std::min(o.concurrency, o.requests);
  std::vector<std::thread> workers;
  workers.reserve(static_cast<size_t>(std::max(count, 0)));
  for (int w = 0; w < count; ++w) {
    workers.emplace_back([&] {
      for (int i = next++; i < o.requests; i = next++) {
        Record(client.Generate(prompts.Make(i), nullptr, std::chrono::seconds(o.timeout_s)),
               results);
        progress.Update(++done);
      }
    });
  }
  for (std::thread& t : workers) t.join();
}

// Threads of the open loop; beyond that arrivals wait, and TTFT does not count their wait.
constexpr std::size_t kMaxInFlight = 4096;

void RunPoisson(InferenceClient& client, const PromptMaker& prompts, const BenchOptions& o,
                Results& results, Progress& progress) {
  std::mt19937_64 rng(o.seed);
  std::exponential_distribution<double> gap(o.rate);
  Clock::time_point at = Clock::now();
  BoundedQueue<int> arrived(kMaxInFlight);
  std::atomic<int> free{0};
  std::atomic<std::int64_t> done{0};
  std::vector<std::thread> workers;
  for (int i = 0; i < o.requests; ++i) {
    at += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(gap(rng)));
    std::this_thread::sleep_until(at);
    // An arrival never waits for an earlier request, so there are as many threads as it takes.
    if (free.fetch_sub(1) <= 0 && workers.size() < kMaxInFlight) {
      ++free;
      workers.emplace_back([&] {
        while (const auto next = arrived.Pop()) {
          Record(client.Generate(prompts.Make(*next), nullptr, std::chrono::seconds(o.timeout_s)),
                 results);
          progress.Update(++done);
          ++free;
        }
      });
    }
    arrived.Push(i);
  }
  arrived.Close();
  for (std::thread& t : workers) t.join();
}

nlohmann::json ToJson(const LatencySummary& s) {
  return {{"count", s.count}, {"mean_s", s.mean}, {"min_s", s.min}, {"p50_s", s.p50},
          {"p90_s", s.p90},   {"p95_s", s.p95},   {"p99_s", s.p99}, {"max_s", s.max}};
}

void PrintRow(const char* name, const LatencySummary& s) {
  std::cout << fmt::format("{:<6} {:>7} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f}\n",
                           name, s.count, s.mean * 1e3, s.p50 * 1e3, s.p90 * 1e3, s.p95 * 1e3,
                           s.p99 * 1e3, s.max * 1e3);
}

int Report(const BenchOptions& o, Results& results, double wall) {
  MutexLock lock(results.mu);
  const LatencySummary ttft = Summarize(results.ttft);
  const LatencySummary itl = Summarize(results.itl);
  const LatencySummary e2e = Summarize(results.e2e);
  std::cout << fmt::format("{:<6} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}   (ms)\n", "", "count",
                           "mean", "p50", "p90", "p95", "p99", "max");
  PrintRow("TTFT", ttft);
  PrintRow("ITL", itl);
  PrintRow("E2E", e2e);
  const auto done = static_cast<double>(results.e2e.size());
  std::cout << fmt::format(
      "{} of {} requests in {:.2f} s: {:.2f} requests/s, {:.1f} output tokens/s, {:.1f} prompt "
      "tokens/s ({} cached, {} handed off)\n",
      results.e2e.size(), o.requests, wall, done / wall,
      static_cast<double>(results.output_tokens) / wall,
      static_cast<double>(results.prompt_tokens) / wall, results.cached_tokens,
      results.transferred_tokens);
  for (std::size_t i = 0; i < std::min<std::size_t>(results.errors.size(), 5); ++i) {
    std::cout << "error: " << results.errors[i] << "\n";
  }
  if (!o.json_file.empty()) {
    nlohmann::json out = {
        {"mode", o.rate > 0 ? "poisson" : "closed loop"},
        {"requests", o.requests},
        {"concurrency", o.concurrency},
        {"rate", o.rate},
        {"prompt_tokens_each", o.prompt_tokens},
        {"shared_prefix_tokens", o.shared_tokens},
        {"output_tokens_each", o.output_tokens},
        {"wall_s", wall},
        {"failed", results.errors.size()},
        {"requests_per_s", done / wall},
        {"output_tokens_per_s", static_cast<double>(results.output_tokens) / wall},
        {"prompt_tokens_per_s", static_cast<double>(results.prompt_tokens) / wall},
        {"cached_tokens", results.cached_tokens},
        {"transferred_tokens", results.transferred_tokens},
        {"ttft", ToJson(ttft)},
        {"itl", ToJson(itl)},
        {"e2e", ToJson(e2e)}};
    std::ofstream file(o.json_file);
    file << out.dump(2) << "\n";
    if (!file.flush()) {
      std::cerr << "baton: cannot write " << o.json_file << "\n";
      return 1;
    }
  }
  return results.errors.empty() ? 0 : 1;
}

constexpr char kDefaultText[] =
    "A lighthouse keeper writes down the weather, the ships that pass and the hours of the lamp. "
    "Every page of the book looks like the one before it, and yet no two nights were ever the "
    "same: "
    "fog came from the north, a sail was seen at dawn, the oil ran low, and the wind turned "
    "twice. ";

int RunBench(const BenchOptions& o) {
  if (o.shared_tokens > o.prompt_tokens) {
    std::cerr << "baton: --shared-prefix-tokens " << o.shared_tokens
              << " is more than --prompt-tokens " << o.prompt_tokens << "\n";
    return 2;
  }
  auto client = InferenceClient::Connect(o.router, o.api_key);
  if (!client.ok()) {
    std::cerr << "baton: " << client.status().message() << "\n";
    return 1;
  }
  std::string text = kDefaultText;
  if (!o.text_file.empty()) {
    std::ifstream in(o.text_file);
    text.assign(std::istreambuf_iterator<char>(in), {});
    if (text.empty()) {
      std::cerr << "baton: " << o.text_file << " is missing or empty\n";
      return 1;
    }
    text.resize(std::min<std::size_t>(text.size(), 1 << 20));
    // The cut may have gone through a character.
    for (int i = 0; i < 3 && !IsValidUtf8(text); ++i) text.pop_back();
    if (!IsValidUtf8(text)) {
      std::cerr << "baton: " << o.text_file << " is not valid UTF-8\n";
      return 1;
    }
  }
  auto ids = (*client)->Tokenize(o.model, text);
  if (!ids.ok()) {
    std::cerr << "baton: " << ids.status().message() << " ("
              << absl::StatusCodeToString(ids.status().code()) << ")\n";
    return 1;
  }
  if (ids->empty()) {
    std::cerr << "baton: the text has no tokens\n";
    return 1;
  }
  if (!o.json_file.empty() && !std::ofstream(o.json_file, std::ios::app)) {
    std::cerr << "baton: cannot write " << o.json_file << "\n";
    return 1;
  }
  const PromptMaker prompts(*std::move(ids), o);
  Results results;
  Progress progress("requests", o.requests);
  const Clock::time_point start = Clock::now();
  if (o.rate > 0) {
    RunPoisson(**client, prompts, o, results, progress);
  } else {
    RunClosedLoop(**client, prompts, o, results, progress);
  }
  return Report(o, results, Seconds(Clock::now() - start));
}

}  // namespace

void AddBenchCommand(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "measure a running deployment");
  bench->require_subcommand(1);
  auto o = std::make_shared<BenchOptions>();
  CLI::App* cmd = bench->add_subcommand(
      "serve", "TTFT, ITL, E2E and throughput over gRPC, closed loop or Poisson arrivals");
  cmd->add_option("--router", o->router, "host:port of the router's gRPC API")
      ->capture_default_str();
  cmd->add_option("--api-key", o->api_key, "where the router asks for one")
      ->envname(kApiKeyVariable);
  cmd->add_option("--model", o->model, "model to ask; default: the only one");
  cmd->add_option("--strategy", o->strategy,
                  "hand-off strategy: auto, oracle, raw, q4, reuse, scd, selective");
  cmd->add_option("--requests", o->requests, "requests in all")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  cmd->add_option("--concurrency", o->concurrency, "requests in flight (closed loop)")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  cmd->add_option("--rate", o->rate, "Poisson arrivals per second; 0: closed loop")
      ->check(CLI::Range(0.0, 10'000.0));
  cmd->add_option("--prompt-tokens", o->prompt_tokens, "tokens of each prompt")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  cmd->add_option("--shared-prefix-tokens", o->shared_tokens,
                  "of which all requests share this many")
      ->capture_default_str()
      ->check(CLI::Range(0, 1'000'000));
  cmd->add_option("--output-tokens", o->output_tokens, "tokens generated for each")
      ->capture_default_str()
      ->check(CLI::Range(1, 100'000));
  cmd->add_option("--seed", o->seed, "of the prompts and the arrivals")->capture_default_str();
  cmd->add_option("--timeout", o->timeout_s, "seconds for one request")
      ->capture_default_str()
      ->check(CLI::Range(1, 86'400));
  cmd->add_option("--text", o->text_file, "UTF-8 text to cut prompts from");
  cmd->add_option("--json", o->json_file, "also write the result to this file");
  cmd->callback([o, &exit_code] { exit_code = RunBench(*o); });
}

}  // namespace baton::tools
