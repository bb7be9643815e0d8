// What is known of each producer: a channel, its incarnation and the space it sends.
//
// A link is made once per (address, base model, wanted space) and then reused; requests that need
// one while it is being made wait for that one call. After a failure the same answer is given for a
// back-off that doubles. Thread-safe; callbacks run on a gRPC thread, or at once on the caller's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/prefix_hash/space.h"
#include "common/rpc/tls.h"
#include "decode_node/serve/link_meter.h"
#include "proto/prefill.grpc.pb.h"

namespace baton {

struct ProducerLink {
  std::string address;
  std::string base_model;
  std::shared_ptr<v1::Prefill::Stub> stub;
  v1::NodeIdentity node;
  Space space;  // what it sends
  std::string transport_version;
  std::shared_ptr<LinkMeter> meter;  // of the link, whoever uses it
};

struct ProducerLinksOptions {
  v1::NodeIdentity self;
  std::function<std::string()> transport_address;  // asked for each link: it may change
  std::string transport_version;
  std::chrono::milliseconds timeout{1'000};
  std::chrono::milliseconds backoff_initial{100};
  std::chrono::milliseconds backoff_max{2'000};
  std::chrono::milliseconds idle{600'000};  // what nobody asked for so long is forgotten
  int max_message_bytes = 16 << 20;
  std::optional<ChannelTls> tls;
};

class ProducerLinks {
 public:
  using Result = absl::StatusOr<std::shared_ptr<const ProducerLink>>;
  using Done = std::function<void(Result)>;

  explicit ProducerLinks(ProducerLinksOptions options);
  ~ProducerLinks();

  // `wants` as in CompareWants. Errors: the producer's (FAILED_PRECONDITION names the field of the
  // space that differs), UNAVAILABLE, DEADLINE_EXCEEDED; the message names the producer.
  void Get(const std::string& address, const std::string& base_model, const Space& wants,
           Done done);

  // The link failed in use or its producer has restarted: the next Get makes a new one. Does
  // nothing if that has happened already.
  void Drop(const std::shared_ptr<const ProducerLink>& link);

  // Producers that are remembered, dead ones included.
  std::size_t known() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with calls under way
};

}  // namespace baton
