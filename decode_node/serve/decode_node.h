// A decode node in one object, so that tests can run one inside a process.
//
//   BATON_ASSIGN_OR_RETURN(auto node, DecodeNode::Start(config, transport));
//   node->Drain(std::chrono::seconds(30));   // the destructor stops at once
#pragma once

#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "common/node/model_host.h"
#include "common/transport/transport.h"
#include "decode_node/serve/decode_config.h"

namespace baton {

class CodeReceiver;
class DecodeService;

// Thread-safe.
class DecodeNode {
 public:
  // Verifies the models' files, opens HTTP (not ready), loads the models, serves. Errors name the
  // config field; nothing listens after one.
  // `transport` may be null: every prefix is then computed here.
  static absl::StatusOr<std::unique_ptr<DecodeNode>> Start(const DecodeConfig& config,
                                                           std::shared_ptr<Transport> transport);
  ~DecodeNode();

  int grpc_port() const;
  int http_port() const;
  ModelHost& host();
  DecodeService& service();
  const CodeReceiver& receiver() const;
  MetricRegistry& metrics();

  // Refuses new work, lets what runs finish within `timeout`, then cancels it.
  void Drain(std::chrono::nanoseconds timeout);

 private:
  class Impl;
  explicit DecodeNode(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
