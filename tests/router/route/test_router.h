// A router with its gRPC API in front of fake nodes, and a blocking client.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_server.h"
#include "router/discovery/static_directory.h"
#include "router/route/router.h"
#include "router/route/router_service.h"
#include "tests/router/route/fake_nodes.h"

namespace baton {

inline bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

struct Outcome {
  std::string text;
  std::vector<int64_t> ids;
  std::vector<v1::TokenLogprobs> scores;
  int finishes = 0;
  v1::GenerateEvent::Finished finished;
  grpc::Status status;
  std::string retry_after;
};

// A router with its gRPC API, and a blocking client.
class TestRouter {
 public:
  explicit TestRouter(std::vector<std::string> decode, std::vector<std::string> prefill = {},
                      std::function<void(RouterConfig&)> change = {}) {
    RouterConfig config;
    config.nodes.decode = decode;
    config.nodes.prefill = prefill;
    config.health.interval = std::chrono::milliseconds(50);
    config.health.timeout = std::chrono::milliseconds(500);
    config.retry.backoff = std::chrono::milliseconds(5);
    config.retry.node_wait = std::chrono::milliseconds(300);
    if (change) change(config);
    directory = *StaticDirectory::Create(decode, prefill);
    router = *Router::Create(config, *directory, registry);
    service_ = std::make_unique<InferenceService>(*router);
    server_ = *RpcServer::Start({}, {service_.get()});
    stub = v1::Inference::NewStub(*MakeChannel(server_->address()));
  }
  ~TestRouter() { server_.reset(); }

  void WaitReady() {
    ASSERT_TRUE(Eventually([&] { return router->Ready(); })) << "no ready model";
  }
  static v1::GenerateRequest Request(int64_t max_tokens = 10) {
    v1::GenerateRequest request;
    request.set_model("tiny");
    request.set_text("hello");
    request.mutable_stop()->set_max_tokens(max_tokens);
    return request;
  }
  Outcome Generate(const v1::GenerateRequest& request, absl::Duration timeout = absl::Seconds(20)) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);  // a loaded machine connects slowly
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    auto reader = stub->Generate(&context, request);
    Outcome out;
    v1::GenerateEvent event;
    while (reader->Read(&event)) {
      if (event.has_finished()) {
        ++out.finishes;
        out.finished = event.finished();
        continue;
      }
      EXPECT_EQ(out.finishes, 0) << "a delta after the end";
      out.text += event.delta().text();
      out.scores.insert(out.scores.end(), event.delta().prompt_logprobs().begin(),
                        event.delta().prompt_logprobs().end());
      out.ids.insert(out.ids.end(), event.delta().token_ids().begin(),
                     event.delta().token_ids().end());
    }
    out.status = reader->Finish();
    const auto& trailing = context.GetServerTrailingMetadata();
    if (auto it = trailing.find("retry-after-ms"); it != trailing.end()) {
      out.retry_after = std::string(it->second.data(), it->second.size());
    }
    return out;
  }
  bool Idle() {
    return router->inflight() == 0 &&
           registry.SerializeText().find("baton_router_inflight 0") != std::string::npos;
  }
  double Metric(const std::string& line_start) {
    const std::string text = registry.SerializeText();
    const size_t at = text.find("\n" + line_start + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + line_start.size() + 2));
  }

  MetricRegistry registry;
  std::unique_ptr<NodeDirectory> directory;  // outlives the router, which reads it
  std::unique_ptr<Router> router;
  std::unique_ptr<v1::Inference::Stub> stub;

 private:
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<RpcServer> server_;
};

// Whether that many nodes are seen as active, soon.
inline bool AllAnswered(TestRouter& s, size_t nodes) {
  return Eventually([&] {
    const std::string text = s.registry.SerializeText();
    size_t active = 0;
    for (size_t at = 0; (at = text.find("state=\"active\"} 1", at)) != std::string::npos; ++at) {
      ++active;
    }
    return active == nodes;
  });
}

}  // namespace baton
