// One OpenAI request while it runs: its generations, and its reply.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "router/gateway/backend.h"
#include "router/gateway/http_message.h"
#include "router/gateway/openai_request.h"
#include "router/gateway/openai_response.h"
#include "router/gateway/prompt_echo.h"

namespace baton {

// Starts prompts x n generations with seeds counted up, and answers `reply`. Lives until the last
// generation is over. Thread-safe.
//
// An error before anything was sent is an HTTP status; afterwards it is one SSE error event and a
// broken connection. The first error cancels the other choices, and so does a client that goes away
// or reads too slowly.
class OpenAiJob : public std::enable_shared_from_this<OpenAiJob> {
 public:
  // `info`: of the request; its generations get ids and deadlines of their own.
  static void Start(GenerationBackend& backend, OpenAiRequest request, CallInfo info,
                    std::shared_ptr<HttpReply> reply);

 private:
  class Sink;
  struct Choice {
    explicit Choice(PromptEcho prompt) : echo(std::move(prompt)) {}
    ChoiceText gathered;  // of a stream, only the end
    PromptEcho echo;      // empty without `echo`
    bool prompt_over = false;
    TokenOffsets offsets;  // behind the prompt
    bool started = false;  // its first chunk was sent
    bool finished = false;
    bool done = false;
    std::shared_ptr<Generation> generation;
  };

  OpenAiJob(OpenAiRequest request, const std::string& request_id, std::shared_ptr<HttpReply> reply);

  void Run(GenerationBackend& backend, const CallInfo& common);
  bool OnEvent(size_t index, v1::GenerateEvent event) EXCLUDES(mu_);
  void OnDone(size_t index, const absl::Status& status) EXCLUDES(mu_);
  void CancelAll() EXCLUDES(mu_);

  bool Take(Choice& choice, size_t index, v1::GenerateEvent event) REQUIRES(mu_);
  // A piece of the reply: `delta` with the offsets of its tokens.
  bool Show(Choice& choice, size_t index, v1::GenerateEvent::Delta delta,
            const std::vector<int64_t>& offsets) REQUIRES(mu_);
  // What of the echoed prompt is known; `over`: nothing of it follows.
  bool ShowPrompt(Choice& choice, size_t index, v1::GenerateEvent::Delta scores, bool over)
      REQUIRES(mu_);
  bool StartChoice(size_t index) REQUIRES(mu_);
  void Complete() REQUIRES(mu_);
  void Fail(const absl::Status& status) REQUIRES(mu_);
  v1::Usage TotalUsage() const REQUIRES(mu_);

  const OpenAiRequest request_;
  ReplyHead head_;
  const std::shared_ptr<HttpReply> reply_;
  const HttpHeaders headers_;
  Mutex mu_;
  std::vector<Choice> choices_ GUARDED_BY(mu_);
  size_t open_ GUARDED_BY(mu_) = 0;
  bool streaming_ GUARDED_BY(mu_) = false;
  bool over_ GUARDED_BY(mu_) = false;  // answered, failed or abandoned
};

}  // namespace baton
