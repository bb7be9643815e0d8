// One generation on its way: check, tokenise, decode call, and further decode calls when one fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/rpc/client_stream.h"
#include "common/tokenizer/tool_calls.h"
#include "proto/decode.pb.h"
#include "proto/router.pb.h"
#include "router/gateway/backend.h"
#include "router/route/router_core.h"

namespace baton {

// Phases follow each other (executor, asset callback, gRPC callbacks of one decode call, timer), so
// only what Cancel() touches needs the lock. The call keeps itself alive until OnDone was called.
//
// A decode call that fails before the first token is made again elsewhere, out of the retry budget;
// one that a full node refuses, only on nodes not asked yet.
// After the first token the next call carries the tokens already sent; it continues behind them, so
// the client sees each token once. The first event of a generation fixes its native space: a stream
// never continues on other weights.
class GenerationCall final : public Generation,
                             public std::enable_shared_from_this<GenerationCall> {
 public:
  // The caller has entered the core (TryEnter); the call leaves it.
  static std::shared_ptr<GenerationCall> Start(RouterCore& core, CallInfo info,
                                               v1::GenerateRequest request,
                                               std::shared_ptr<GenerationSink> sink);
  void Cancel() override;

 private:
  using Stream = ClientStream<v1::DecodeEvent>;

  GenerationCall(RouterCore& core, CallInfo info, v1::GenerateRequest request,
                 std::shared_ptr<GenerationSink> sink);

  void Prepare();
  void OnTokenizer(absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer);
  void OnChatTemplate(absl::StatusOr<std::shared_ptr<const ChatTemplate>> chat);
  void Tokenise(const ChatTemplate* chat);

  void NextAttempt();
  static std::string PrefixName(const v1::DecodeRequest& request);
  void StartAttempt(const std::shared_ptr<Node>& node);
  void OnMessage(v1::DecodeEvent& event);
  void OnDelta(v1::DecodeEvent::Delta& delta);
  // Takes out what an earlier attempt delivered of the prompt's log-probabilities.
  void DropKnownScores(v1::DecodeEvent::Delta& delta);
  // The first event fixes on which weights the stream goes on.
  void FixSpace();
  void OnFinished(v1::DecodeEvent::Finished& finished);
  // Sends the text held back, if it is no call, and adds the calls to `out`.
  void SendToolCalls(v1::GenerateEvent::Finished* out);
  void OnAttemptDone(absl::Status status);
  void AfterFailure(absl::Status status);
  void WaitThen(std::chrono::nanoseconds delay, void (GenerationCall::*next)());
  // True when everything was delivered but the end of the stream was lost; sends the end.
  bool FinishFromDelivered();

  void Abort(absl::Status reason) EXCLUDES(mu_);
  bool Aborted() EXCLUDES(mu_);
  // True when the call is to end; it was ended.
  bool EndIfAborted() EXCLUDES(mu_);
  void Finish(const absl::Status& status) EXCLUDES(mu_);
  double SecondsSinceArrival() const;

  RouterCore& core_;
  CallInfo info_;
  const v1::GenerateRequest request_;
  const std::shared_ptr<GenerationSink> sink_;

  ModelRoute route_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  v1::DecodeRequest decode_request_;
  std::optional<ToolCallReader> tool_calls_;  // of a chat with tools
  std::vector<std::shared_ptr<Node>> tried_;
  std::shared_ptr<Node> node_;  // of the running attempt
  NodeLease lease_;
  NodeLease prefill_lease_;
  std::string space_;               // native space of the first token; empty: none yet
  std::vector<int64_t> delivered_;  // token ids sent to the client
  int64_t scored_ = 0;              // log-probabilities of the prompt sent to the client
  int64_t attempt_scored_ = 0;      // the same, received in the running attempt
  bool attempt_began_ = false;      // the running attempt gave something
  bool only_untried_ = false;       // the last node was full; asking one twice helps nobody
  std::chrono::nanoseconds prepare_started_{0};
  std::chrono::nanoseconds last_token_{0};
  std::chrono::nanoseconds wait_until_{0};  // for a node to come back; 0: not waiting
  double router_s_ = -1;                    // arrival to the first decode call
  double ttft_s_ = -1;
  int calls_ = 0;
  bool finished_ = false;  // Finished was sent to the client
  v1::Usage usage_;
  std::string served_;  // strategy, for the log
  absl::Status last_error_;

  Mutex mu_;
  absl::Status aborted_ GUARDED_BY(mu_);  // not ok: why the call is to end
  uint64_t attempt_ GUARDED_BY(mu_) = 0;
  std::shared_ptr<Stream> stream_ GUARDED_BY(mu_);
  std::shared_ptr<RouterExecutor::Timer> timer_ GUARDED_BY(mu_);
};

}  // namespace baton
