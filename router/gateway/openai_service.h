// The paths of the HTTP API.
//
//   POST /v1/chat/completions   POST /v1/completions   GET /v1/models   GET /v1/models/{id}
//   GET /health   GET /readyz   GET /metrics
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/metrics/metrics.h"
#include "router/gateway/api_keys.h"
#include "router/gateway/backend.h"
#include "router/gateway/http_message.h"

namespace baton {

// Thread-safe; never blocks.
class OpenAiService {
 public:
  // Both must outlive the service and the requests it started.
  OpenAiService(GenerationBackend& backend, const MetricRegistry& metrics);

  // Before the first request; without, everybody may.
  void SetApiKeys(ApiKeys keys) { keys_ = std::move(keys); }

  // Paths under /v1/ need a known API key, if there are any.
  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply);

  // From now on /readyz says 503 and new generations are refused with 503; what runs goes on.
  void StartDraining() { draining_.store(true); }

  // For HttpServerOptions::error_response.
  static HttpResponse ErrorFor(int status, const std::string& message);

 private:
  void HandleGet(const HttpRequest& request, HttpReply& reply);
  void HandleModel(const std::string& id, HttpReply& reply);
  void HandleGenerate(HttpRequest request, std::string tenant, std::shared_ptr<HttpReply> reply);

  GenerationBackend& backend_;
  const MetricRegistry& metrics_;
  const int64_t started_;  // Unix seconds
  ApiKeys keys_;
  std::atomic<bool> draining_{false};
};

}  // namespace baton
