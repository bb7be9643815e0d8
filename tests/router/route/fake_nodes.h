// Decode and prefill nodes for tests of the router: real gRPC servers, made-up tokens.
//
// Token i of every generation is the letter 'a' + i % 26, so the text of a stream shows at once
// whether something is missing or doubled.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/prefix_hash/space.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/stream_writer.h"
#include "common/tokenizer/tokenizer.h"
#include "proto/decode.grpc.pb.h"
#include "proto/prefill.grpc.pb.h"
#include "tests/support/tiny_model.h"

namespace baton {

// A node whose configuration names its template sends the name as the asset.
inline constexpr char kChatMl[] = "chatml";

inline std::string LettersFrom(int64_t first, int64_t end) {
  std::string text;
  for (int64_t i = first; i < end; ++i) text += static_cast<char>('a' + i % 26);
  return text;
}

inline v1::Space SpaceOfDigest(const std::string& digest) {
  v1::Space space;
  space.set_digest(digest);
  return space;
}

class FakeDecode final : public v1::Decode::CallbackService {
 public:
  explicit FakeDecode(int port = 0) {
    tokenizer_json_ = (*Tokenizer::FromJson(tiny_model_internal::TokenizerJson(512)))->Serialize();
    RpcServerOptions options;
    options.port = port;
    auto server = RpcServer::Start(options, {this});
    if (server.ok()) server_ = *std::move(server);
  }
  ~FakeDecode() override {
    stop_.store(true);
    server_.reset();
    for (std::thread& thread : threads_) thread.join();
  }

  // How to behave; set before requests come.
  std::atomic<int64_t> fail_after{-1};      // tokens; then `failure`
  std::atomic<int> failures_left{1 << 30};  // generations that fail
  absl::Status failure = absl::UnavailableError("scripted");
  std::atomic<int> delay_ms{0};            // before each token
  std::atomic<int> fail_after_scores{-1};  // log-probabilities of the prompt; then `failure`, once
  std::atomic<bool> hang_assets{false};    // GetAsset never answers
  std::atomic<bool> draining{false};
  std::atomic<int> reported_waiting{0};
  std::string native_space = "space-1";
  v1::Space accepts = SpaceOfDigest("accepts-1");
  std::string default_strategy;
  std::string template_text = kChatMl;
  std::string served_template;  // not empty: what GetAsset really sends
  uint32_t max_context = 256;
  std::string reply;  // not empty: what is generated, a character a token

  // What happened.
  std::atomic<int> started{0};
  std::atomic<int> ended{0};
  std::atomic<int> cancelled{0};
  std::vector<v1::DecodeRequest> Requests() {
    MutexLock lock(mu_);
    return requests_;
  }

  std::string address() const { return server_->address(); }
  int port() const { return server_->port(); }

  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const v1::DecodeInfoRequest*,
                                 v1::DecodeInfo* info) override {
    info->mutable_node()->set_name("fake");
    info->mutable_node()->set_incarnation(incarnation_);
    info->set_draining(draining.load());
    info->set_waiting(static_cast<uint32_t>(reported_waiting.load()));
    v1::DecodeModel* model = info->add_models();
    model->set_name("tiny");
    model->set_base_model("base");
    model->mutable_native_space()->set_digest(native_space);
    *model->mutable_accepts() = accepts;
    info->set_default_strategy(default_strategy);
    model->set_tokenizer_digest(ContentDigest(tokenizer_json_));
    if (!template_text.empty()) model->set_chat_template_digest(ContentDigest(template_text));
    model->set_max_context_tokens(max_context);
    model->set_vocab_size(512);
    model->add_eos_token_ids(kTinyImEnd);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerWriteReactor<v1::AssetChunk>* GetAsset(grpc::CallbackServerContext*,
                                                     const v1::GetAssetRequest* request) override {
    auto writer = StreamWriter<v1::AssetChunk>::Create();
    if (hang_assets.load()) {
      MutexLock lock(mu_);
      hanging_.push_back(writer);
      return writer->reactor();
    }
    std::string data;
    if (request->digest() == ContentDigest(tokenizer_json_)) data = tokenizer_json_;
    if (request->digest() == ContentDigest(template_text)) {
      data = served_template.empty() ? template_text : served_template;
    }
    for (size_t at = 0; at < data.size(); at += 1000) {
      v1::AssetChunk chunk;
      chunk.set_data(data.substr(at, 1000));
      (void)writer->Push(std::move(chunk));
    }
    writer->Finish(data.empty() ? absl::NotFoundError("no such asset") : absl::OkStatus());
    return writer->reactor();
  }

  grpc::ServerWriteReactor<v1::DecodeEvent>* Generate(grpc::CallbackServerContext*,
                                                      const v1::DecodeRequest* request) override {
    auto writer = StreamWriter<v1::DecodeEvent>::Create();
    auto gone = std::make_shared<std::atomic<bool>>(false);
    writer->SetOnCancel([this, gone] {
      gone->store(true);
      ++cancelled;
    });
    ++started;
    MutexLock lock(mu_);
    requests_.push_back(*request);
    threads_.emplace_back([this, writer, gone, request = *request] {
      Run(*writer, *gone, request);
      ++ended;
    });
    return writer->reactor();
  }

 private:
  void Run(StreamWriter<v1::DecodeEvent>& writer, const std::atomic<bool>& gone,
           const v1::DecodeRequest& request) {
    const bool fails = fail_after.load() >= 0 && failures_left.fetch_sub(1) > 0;
    int64_t sent = 0;
    if (request.sampling().prompt_logprobs() && request.resume_token_ids().empty()) {
      const int stop_at = fail_after_scores.exchange(-1);
      if (!SendScores(writer, request, stop_at)) return writer.Finish(failure);
    }
    const int64_t count =
        reply.empty() ? request.stop().max_tokens() : static_cast<int64_t>(reply.size());
    for (int64_t i = request.resume_token_ids_size(); i < count; ++i) {
      if (fails && sent++ >= fail_after.load()) return writer.Finish(failure);
      for (int waited = 0; waited < delay_ms.load() && !gone.load() && !stop_.load(); ++waited) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (gone.load() || stop_.load()) return writer.Finish(absl::UnavailableError("stopped"));
      v1::DecodeEvent event;
      event.mutable_delta()->set_text(reply.empty() ? LettersFrom(i, i + 1)
                                                    : reply.substr(static_cast<size_t>(i), 1));
      event.mutable_delta()->add_token_ids('a' + i % 26);
      (void)writer.Push(std::move(event));
    }
    if (fails && sent >= fail_after.load()) return writer.Finish(failure);
    v1::DecodeEvent event;
    event.mutable_finished()->set_reason(v1::LENGTH);
    event.mutable_finished()->mutable_usage()->set_prompt_tokens(request.token_ids_size());
    event.mutable_finished()->mutable_usage()->set_completion_tokens(request.stop().max_tokens());
    (void)writer.Push(std::move(event));
    writer.Finish(absl::OkStatus());
  }

  // In pieces of three, as the log-probability -position.
  static bool SendScores(StreamWriter<v1::DecodeEvent>& writer, const v1::DecodeRequest& request,
                         int stop_at) {
    v1::DecodeEvent event;
    for (int i = 0; i < request.token_ids_size(); ++i) {
      if (i == stop_at) return false;
      auto* chosen = event.mutable_delta()->add_prompt_logprobs()->mutable_chosen();
      chosen->set_token_id(request.token_ids(i));
      if (i > 0) chosen->set_logprob(static_cast<float>(-i));
      if (i % 3 == 2 || i + 1 == request.token_ids_size()) {
        (void)writer.Push(std::move(event));
        event.Clear();
      }
    }
    return true;
  }

  const uint64_t incarnation_ = RandomId64();
  std::string tokenizer_json_;
  std::atomic<bool> stop_{false};
  Mutex mu_;
  std::vector<v1::DecodeRequest> requests_;
  std::vector<std::thread> threads_;
  std::vector<std::shared_ptr<StreamWriter<v1::AssetChunk>>> hanging_;
  std::unique_ptr<RpcServer> server_;
};

class FakePrefill final : public v1::Prefill::CallbackService {
 public:
  FakePrefill(std::string model, const std::string& digest)
      : FakePrefill(std::move(model), SpaceOfDigest(digest)) {}
  FakePrefill(std::string model, v1::Space space)
      : model_(std::move(model)), space_(std::move(space)) {
    server_ = *RpcServer::Start({}, {this});
  }
  // What Info says from now on.
  void SetSpace(v1::Space space) {
    MutexLock lock(mu_);
    space_ = std::move(space);
  }
  std::string address() const { return server_->address(); }

  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context,
                                 const v1::PrefillInfoRequest*, v1::PrefillInfo* info) override {
    info->mutable_node()->set_incarnation(1);
    info->add_models()->set_name(model_);
    {
      MutexLock lock(mu_);
      *info->mutable_models(0)->mutable_space() = space_;
    }
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const std::string model_;
  Mutex mu_;
  v1::Space space_ GUARDED_BY(mu_);
  std::unique_ptr<RpcServer> server_;
};

}  // namespace baton
