#include "router/gateway/openai_service.h"

#include <string_view>
#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/strings.h"
#include "router/gateway/openai_error.h"
#include "router/gateway/openai_job.h"
#include "router/gateway/openai_request.h"
#include "router/gateway/openai_response.h"

namespace baton {
namespace {

constexpr std::string_view kChatPath = "/v1/chat/completions";
constexpr std::string_view kCompletionsPath = "/v1/completions";
constexpr std::string_view kModelsPath = "/v1/models";
constexpr std::string_view kModelPrefix = "/v1/models/";

bool IsGetPath(std::string_view path) {
  return path == kModelsPath || path.substr(0, kModelPrefix.size()) == kModelPrefix ||
         path == "/health" || path == "/readyz" || path == "/metrics";
}

HttpResponse NotAllowed(const HttpRequest& request, const char* allowed) {
  HttpResponse response = OpenAiService::ErrorFor(
      405,
      Cat("method ", request.method, " is not allowed on ", request.path, "; allowed: ", allowed));
  response.headers.emplace_back("allow", allowed);
  return response;
}

HttpResponse Text(int status, std::string body) {
  HttpResponse response;
  response.status = status;
  response.content_type = "text/plain; charset=utf-8";
  response.body = std::move(body);
  return response;
}

// "%2F" and the like in a model's name.
std::string PercentDecoded(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 &&
        digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

OpenAiService::OpenAiService(GenerationBackend& backend, const MetricRegistry& metrics)
    : backend_(backend), metrics_(metrics), started_(absl::ToUnixSeconds(absl::Now())) {}

HttpResponse OpenAiService::ErrorFor(int status, const std::string& message) {
  ApiError error = FromHttpStatus(status, message);
  if (status == 503) error.retry_after = absl::Seconds(1);
  return ErrorResponse(error);
}

void OpenAiService::Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) {
  std::string tenant;
  if (request.path.substr(0, 4) == "/v1/") {
    auto known = keys_.TenantOf(request.authorization);
    if (!known.ok()) {
      HttpResponse response = ErrorResponse(FromStatus(known.status()));
      response.headers.emplace_back("www-authenticate", "Bearer");
      return reply->Send(std::move(response));
    }
    tenant = *std::move(known);
  }
  if (request.path == kChatPath || request.path == kCompletionsPath) {
    if (request.method != "POST") return reply->Send(NotAllowed(request, "POST"));
    return HandleGenerate(std::move(request), std::move(tenant), std::move(reply));
  }
  if (IsGetPath(request.path)) {
    if (request.method != "GET" && request.method != "HEAD") {
      return reply->Send(NotAllowed(request, "GET, HEAD"));
    }
    return HandleGet(request, *reply);
  }
  reply->Send(ErrorFor(404, Cat("no such path: ", request.path.substr(0, 200))));
}

void OpenAiService::HandleGet(const HttpRequest& request, HttpReply& reply) {
  if (request.path == "/health") return reply.Send(Text(200, "ok\n"));
  if (request.path == "/readyz") {
    if (draining_.load()) return reply.Send(Text(503, "draining\n"));
    const bool ready = backend_.Ready();
    return reply.Send(ready ? Text(200, "ready\n")
                            : Text(503, "not ready: no decode node serves a model\n"));
  }
  if (request.path == "/metrics") {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = metrics_.SerializeText();
    return reply.Send(std::move(response));
  }
  if (request.path == kModelsPath) {
    HttpResponse response;
    response.body = ModelList(backend_.Models(), started_);
    return reply.Send(std::move(response));
  }
  HandleModel(PercentDecoded(std::string_view(request.path).substr(kModelPrefix.size())), reply);
}

void OpenAiService::HandleModel(const std::string& id, HttpReply& reply) {
  for (const v1::ModelInfo& model : backend_.Models()) {
    if (model.name() != id) continue;
    HttpResponse response;
    response.body = ModelObject(model, started_);
    return reply.Send(std::move(response));
  }
  reply.Send(ErrorResponse(
      FromStatus(absl::NotFoundError(Cat("model: '", id.substr(0, 200), "' does not exist")))));
}

void OpenAiService::HandleGenerate(HttpRequest request, std::string tenant,
                                   std::shared_ptr<HttpReply> reply) {
  const std::chrono::nanoseconds arrival = Clock::Real().Now();
  if (draining_.load()) return reply->Send(ErrorFor(503, "the router is shutting down"));
  const OpenAiKind kind = request.path == kChatPath ? OpenAiKind::kChat : OpenAiKind::kCompletion;
  std::variant<OpenAiRequest, ApiError> parsed = ParseOpenAiRequest(kind, request.body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    return reply->Send(ErrorResponse(*error));
  }
  CallInfo info;
  info.tenant = std::move(tenant);
  info.request_id = request.request_id;
  info.arrival = arrival;
  OpenAiJob::Start(backend_, std::get<OpenAiRequest>(std::move(parsed)), std::move(info),
                   std::move(reply));
}

}  // namespace baton
