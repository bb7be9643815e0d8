// A decode node and prefill nodes in one process: real gRPC on loopback, in-process transport, tiny
// random models.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/transport/in_process_transport.h"
#include "decode_node/serve/code_receiver.h"
#include "decode_node/serve/decode_node.h"
#include "decode_node/serve/service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prefill_node/prefill_node.h"
#include "prefill_node/service.h"
#include "proto/decode.grpc.pb.h"
#include "tests/support/tiny_model.h"

namespace baton {

struct Answer {
  absl::Status status;
  std::vector<std::int64_t> tokens;
  std::string text;
  std::vector<v1::TokenLogprobs> logprobs;
  v1::DecodeEvent::Finished finished;

  const v1::Timing& timing() const { return finished.timing(); }
};

// Waits for `done` up to `timeout`; for what other threads do soon.
inline bool Eventually(const std::function<bool()>& done,
                       std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// `n` token ids below 256, a different text for each seed.
inline std::vector<std::int64_t> Prompt(int n, std::uint32_t seed) {
  std::vector<std::int64_t> ids;
  std::uint32_t x = seed * 2654435761u + 12345;
  for (int i = 0; i < n; ++i) {
    x = x * 1664525u + 1013904223u;
    ids.push_back(32 + (x >> 16) % 90);
  }
  return ids;
}

class NodePair : public ::testing::Test {
 protected:
  NodePair() {
    dir_ = std::filesystem::temp_directory_path() / ("baton_pair_" + HexId(RandomId64()));
    WriteTinyLlama(dir_ / "a", {.seed = 1});
    WriteTinyLlama(dir_ / "b", {.seed = 2});
    InProcessOptions options;
    options.progress_deadline = absl::Seconds(2);
    network_ = InProcessNetwork::Create(options);
  }

  ~NodePair() override {
    decode_.reset();
    prefill_.clear();
    std::filesystem::remove_all(dir_);
  }

  ModelEntry Entry(const std::string& name, const std::string& folder) const {
    ModelEntry e;
    e.name = name;
    e.path = (dir_ / folder).string();
    return e;
  }

  template <typename Config>
  Config Common(const std::string& name, std::vector<ModelEntry> models) const {
    Config c;
    c.node.name = name;
    c.threads.engine = 1;
    c.threads.worker = 1;
    c.memory.kv_cache = 32 << 20;
    c.models = std::move(models);
    c.engine.step_tokens = 128;
    c.shutdown.drain_timeout = std::chrono::milliseconds(2000);
    return c;
  }

  void StartDecode(std::vector<ModelEntry> models,
                   const std::function<void(DecodeConfig&)>& change = {}) {
    auto config = Common<DecodeConfig>("decode", std::move(models));
    config.handoff.progress_timeout = std::chrono::milliseconds(1500);
    config.handoff.link_timeout = std::chrono::seconds(20);  // sanitizers are slow
    if (change) change(config);
    auto node = DecodeNode::Start(config, network_->Add("decode"));
    ASSERT_TRUE(node.ok()) << node.status();
    decode_ = *std::move(node);
    auto channel = MakeChannel(absl::StrCat("127.0.0.1:", decode_->grpc_port()));
    ASSERT_TRUE(channel.ok());
    stub_ = v1::Decode::NewStub(*channel);
  }

  // Returns its gRPC address.
  std::string StartPrefill(const std::string& name, std::vector<ModelEntry> models,
                           const std::function<void(PrefillConfig&)>& change = {}) {
    auto config = Common<PrefillConfig>(name, std::move(models));
    config.handoff.heartbeat = std::chrono::milliseconds(200);
    config.handoff.frame_bytes = 64 << 10;
    if (change) change(config);
    auto node = PrefillNode::Start(config, network_->Add(name));
    EXPECT_TRUE(node.ok()) << node.status();
    if (!node.ok()) return "";
    prefill_.push_back(*std::move(node));
    return absl::StrCat("127.0.0.1:", prefill_.back()->grpc_port());
  }

  v1::DecodeRequest Request(const std::string& model, std::vector<std::int64_t> tokens,
                            const std::string& strategy,
                            const std::vector<std::string>& producers = {}) const {
    v1::DecodeRequest r;
    r.set_model(model);
    r.mutable_token_ids()->Add(tokens.begin(), tokens.end());
    r.mutable_sampling()->set_temperature(0);
    r.mutable_stop()->set_max_tokens(12);
    r.mutable_stop()->set_ignore_eos(true);
    r.set_strategy(strategy);
    for (const auto& p : producers) r.add_prefill_nodes(p);
    r.set_want_timing(true);
    return r;
  }

  Answer Ask(const v1::DecodeRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    auto stream = stub_->Generate(&context, request);
    Answer answer;
    v1::DecodeEvent event;
    while (stream->Read(&event)) {
      if (event.has_delta()) {
        answer.text += event.delta().text();
        for (auto id : event.delta().token_ids()) answer.tokens.push_back(id);
        for (auto& l : event.delta().logprobs()) answer.logprobs.push_back(l);
      } else {
        answer.finished = event.finished();
      }
    }
    answer.status = FromGrpcStatus(stream->Finish());
    return answer;
  }

  // What the model says when it computes everything itself, with cold caches.
  Answer Oracle(const std::string& model, std::vector<std::int64_t> tokens) {
    auto request = Request(model, std::move(tokens), "oracle");
    request.set_scope(absl::StrCat("cold-", ++cold_));  // a scope nobody has used
    return Ask(request);
  }

  // Nothing but the prefix caches holds memory, and those can be emptied.
  void ExpectNothingHeld() {
    EXPECT_TRUE(Eventually([&] { return decode_->service().live_sessions() == 0; }));
    EXPECT_TRUE(Eventually([&] { return decode_->receiver().live_transfers() == 0; }));
    EXPECT_TRUE(Eventually([&] { return decode_->receiver().buffered_bytes() == 0; }))
        << decode_->receiver().buffered_bytes();
    const auto empty = [](ModelHost& host) {
      host.ClearPrefixCaches();
      const ModelHost::Totals t = host.GetTotals();
      return t.pages_held == 0 && t.pages_reserved == 0 && t.running == 0 && t.waiting == 0;
    };
    EXPECT_TRUE(Eventually([&] { return empty(decode_->host()); }))
        << decode_->host().GetTotals().pages_held;
    for (auto& p : prefill_) {
      EXPECT_TRUE(Eventually([&] { return p->service().live_transfers() == 0; }));
      EXPECT_TRUE(Eventually([&] { return empty(p->host()); })) << p->host().GetTotals().pages_held;
    }
  }

  std::filesystem::path dir_;
  std::shared_ptr<InProcessNetwork> network_;
  std::unique_ptr<DecodeNode> decode_;
  std::vector<std::unique_ptr<PrefillNode>> prefill_;
  std::unique_ptr<v1::Decode::Stub> stub_;
  int cold_ = 0;
};

}  // namespace baton
