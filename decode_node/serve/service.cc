#include "decode_node/serve/service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/node/space_proto.h"
#include "common/rpc/call_context.h"
#include "common/rpc/status.h"
#include "decode_node/serve/request_checks.h"

namespace baton {
namespace {

constexpr std::size_t kAssetChunkBytes = 256 << 10;
constexpr std::size_t kMaxQueuedDeltas = 4096;

}  // namespace

DecodeService::DecodeService(DecodeServiceOptions options, ModelHost& host,
                             std::shared_ptr<const SessionEnv> env)
    : options_(std::move(options)), host_(host), env_(std::move(env)) {
  for (const HostedModel& m : host_.models()) {
    assets_[m.tokenizer->content_digest()] = m.tokenizer->Serialize();
    if (!m.chat_template.empty()) assets_[m.chat_template_digest] = m.chat_template;
  }
}

grpc::ServerWriteReactor<v1::DecodeEvent>* DecodeService::Generate(
    grpc::CallbackServerContext* context, const v1::DecodeRequest* request) {
  auto writer = Session::Writer::Create({.max_queued = kMaxQueuedDeltas});
  if (draining_) {
    writer->Finish(absl::UnavailableError("the decode node is draining"));
    return writer->reactor();
  }
  auto checked = CheckRequest(*request, host_, options_.handoff);
  if (!checked.ok()) {
    // Names nobody serves are not labels: they would be without number.
    const bool known = host_.Find(request->model()) != nullptr;
    env_->requests.With({known ? request->model() : "unknown", "refused"}).Increment();
    writer->Finish(checked.status());
    return writer->reactor();
  }
  if (!IsValidRequestId(checked->request.request_id)) {
    checked->request.request_id = RequestIdOf(*context);
  }
  std::uint64_t key;
  {
    MutexLock lock(mu_);
    key = next_key_++;
  }
  auto session = std::make_shared<Session>(
      env_, *std::move(checked), writer, request->want_timing(), DeadlineOf(*context), [this, key] {
        std::shared_ptr<Session> ended;  // goes outside the lock
        MutexLock lock(mu_);
        if (auto it = sessions_.find(key); it != sessions_.end()) {
          ended = std::move(it->second);
          sessions_.erase(it);
        }
      });
  {
    MutexLock lock(mu_);
    sessions_[key] = session;
  }
  session->Start();
  writer->SetOnCancel([session] { session->Cancel(absl::CancelledError("the client went away")); });
  return writer->reactor();
}

grpc::ServerUnaryReactor* DecodeService::Info(grpc::CallbackServerContext* context,
                                              const v1::DecodeInfoRequest* request,
                                              v1::DecodeInfo* response) {
  *response->mutable_node() = MakeIdentity(options_.node_name, options_.incarnation, "decode");
  for (const HostedModel& m : host_.models()) {
    v1::DecodeModel* model = response->add_models();
    model->set_name(m.name);
    model->set_base_model(m.base_model);
    *model->mutable_native_space() = ToProto(m.native_space);
    *model->mutable_accepts() = ToProto(AcceptedSpace(m));
    model->set_tokenizer_digest(m.tokenizer->content_digest());
    model->set_chat_template_digest(m.chat_template_digest);
    model->set_max_context_tokens(static_cast<std::uint32_t>(m.max_context));
    model->set_vocab_size(static_cast<std::uint32_t>(m.vocab));
    model->mutable_eos_token_ids()->Add(m.eos_token_ids.begin(), m.eos_token_ids.end());
  }
  const ModelHost::Totals totals = host_.GetTotals();
  response->set_running(static_cast<std::uint32_t>(totals.running));
  response->set_waiting(static_cast<std::uint32_t>(totals.waiting));
  response->set_kv_pages_held(static_cast<std::uint64_t>(totals.pages_held));
  response->set_kv_pages_total(static_cast<std::uint64_t>(totals.pages_total));
  response->set_draining(draining_);
  response->set_max_queue(static_cast<std::uint32_t>(options_.max_queue));
  response->set_default_strategy(env_->handoff ? StrategyName(options_.handoff.strategy) : "none");
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<v1::AssetChunk>* DecodeService::GetAsset(
    grpc::CallbackServerContext* context, const v1::GetAssetRequest* request) {
  const auto it = assets_.find(request->digest());
  const std::size_t size = it == assets_.end() ? 0 : it->second.size();
  auto writer = StreamWriter<v1::AssetChunk>::Create({.max_queued = size / kAssetChunkBytes + 2});
  if (it == assets_.end()) {
    writer->Finish(absl::NotFoundError(
        absl::StrCat("digest: this node has no asset \"", request->digest().substr(0, 64), "\"")));
    return writer->reactor();
  }
  for (std::size_t at = 0; at < size; at += kAssetChunkBytes) {
    v1::AssetChunk chunk;
    chunk.set_data(it->second.substr(at, kAssetChunkBytes));
    chunk.set_total_bytes(size);
    if (absl::Status s = writer->Push(std::move(chunk)); !s.ok()) {
      writer->Finish(s);
      return writer->reactor();
    }
  }
  writer->Finish(absl::OkStatus());
  return writer->reactor();
}

std::vector<std::shared_ptr<Session>> DecodeService::Sessions() const {
  std::vector<std::shared_ptr<Session>> sessions;
  MutexLock lock(mu_);
  sessions.reserve(sessions_.size());
  for (const auto& [key, session] : sessions_) sessions.push_back(session);
  return sessions;
}

void DecodeService::Tick() {
  for (const auto& session : Sessions()) session->Tick();
}

void DecodeService::CancelAll(const absl::Status& why) {
  for (const auto& session : Sessions()) session->Cancel(why);
}

std::size_t DecodeService::live_sessions() const {
  MutexLock lock(mu_);
  return sessions_.size();
}

}  // namespace baton
