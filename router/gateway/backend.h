// What the gateway needs of a router. Implemented by router/route for gRPC and HTTP alike; tests
// have a fake.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/router.pb.h"

namespace baton {

// What came beside a request.
struct CallInfo {
  std::string tenant;      // cache scope; empty: the router's own
  std::string request_id;  // valid by IsValidRequestId
  absl::Time deadline = absl::InfiniteFuture();
  std::chrono::nanoseconds arrival{0};  // Clock::Real().Now() when it arrived; 0: now
  bool stream = true;                   // false: the client gets nothing before the end
};

// Receives one generation. Calls come one at a time, on any thread, possibly before Generate
// returned; they must not block.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  // Deltas, then at most one Finished. False: nobody reads any more or reads too slowly; the
  // generation is then cancelled.
  virtual bool OnEvent(v1::GenerateEvent event) = 0;
  // Exactly once, last. OK only after a Finished event.
  virtual void OnDone(const absl::Status& status) = 0;
};

// A running generation. Dropping it changes nothing.
class Generation {
 public:
  virtual ~Generation() = default;
  // Any thread, any number of times. The sink gets OnDone(CANCELLED) unless it was over.
  virtual void Cancel() = 0;
};

// Thread-safe.
class GenerationBackend {
 public:
  virtual ~GenerationBackend() = default;
  // Never null. Every error, also a refusal, goes to `sink`. INVALID_ARGUMENT messages begin with
  // the field they mean ("sampling.top_p: ..."); NOT_FOUND is an unknown model.
  virtual std::shared_ptr<Generation> Generate(CallInfo info, v1::GenerateRequest request,
                                               std::shared_ptr<GenerationSink> sink) = 0;
  // Every model known, in the order of their names.
  virtual std::vector<v1::ModelInfo> Models() const = 0;
  // True when at least one model can be served now.
  virtual bool Ready() const = 0;
};

// A hint when to try again, attached to RESOURCE_EXHAUSTED and UNAVAILABLE.
absl::Status WithRetryAfter(absl::Status status, absl::Duration after);
// Zero: none attached.
absl::Duration RetryAfterOf(const absl::Status& status);

}  // namespace baton
