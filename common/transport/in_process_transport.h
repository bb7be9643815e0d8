// A transport inside one process, for tests: the same interface and thread rules as the real one,
// and it can fail on demand.
//
//   auto network = InProcessNetwork::Create();
//   auto a = network->Add("a"), b = network->Add("b");
//   network->SetFaults({.drop = 0.1, .seed = 7});
//   auto peer = a->Connect(b->address(), /*incarnation=*/1);
//   network->Kill("b");  // like SIGKILL: peers of "b" fail, unfinished messages with them
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/transport/transport.h"

namespace baton {

// What happens to messages. Probabilities lie in [0, 1]; the same seed and the same order of
// sends give the same faults.
struct InProcessFaults {
  double drop = 0;       // lost; the sender sees an ordinary completion
  double duplicate = 0;  // delivered twice
  double reorder = 0;    // delivered after the next message
  double corrupt = 0;    // one bit of the payload (or of the header, if that is empty) flipped
  absl::Duration delay = absl::ZeroDuration();  // added to every message
  // After this many more messages the connection that sends the next one fails (UNAVAILABLE).
  std::optional<uint64_t> fail_after = std::nullopt;
  uint64_t seed = 1;
};

struct InProcessOptions {
  int window = 8;                            // messages in flight per peer
  uint64_t max_payload_bytes = 64ull << 20;  // of one message
  absl::Duration progress_deadline = absl::Seconds(5);
  absl::Duration reconnect_backoff = absl::ZeroDuration();
};

// The wire between in-process transports. Transports may outlive it and each other.
class InProcessNetwork {
 public:
  static std::shared_ptr<InProcessNetwork> Create(InProcessOptions options = {});
  virtual ~InProcessNetwork() = default;

  // A new transport at address "inproc:<name>". A name that is taken is replaced, as a restarted
  // process would: the earlier one is killed.
  virtual std::shared_ptr<Transport> Add(const std::string& name) = 0;

  // For all messages sent from now on.
  virtual void SetFaults(const InProcessFaults& faults) = 0;

  // As SIGKILL: connections from and to `name` fail with UNAVAILABLE.
  virtual void Kill(const std::string& name) = 0;

  // As SIGSTOP and SIGCONT: while paused, `name` neither delivers nor completes; senders to it
  // fail with DEADLINE_EXCEEDED after the progress deadline.
  virtual void Pause(const std::string& name) = 0;
  virtual void Resume(const std::string& name) = 0;
};

}  // namespace baton
