// What a prefill node may be asked for, and how the engine is asked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/engine/request.h"
#include "common/node/model_host.h"
#include "common/scd/coding.h"
#include "common/wire/frame.h"
#include "prefill_node/block_coder.h"
#include "proto/prefill.pb.h"

namespace baton {

// A Start that passed every check.
struct PrefillJob {
  const HostedModel* model = nullptr;
  EngineRequest request;
  Coding coding = Coding::kRaw;
  std::int32_t first_token = 0;
  FrameSecret secret{};
  // kReuse only. The request's report_from is that of a prefix of which the store has nothing.
  std::optional<CodeJob> codes;
};

// Pure but for reading the host; thread-safe.
class Producer {
 public:
  explicit Producer(const ModelHost& host) : host_(host) {}

  // NOT_FOUND: unknown base model. FAILED_PRECONDITION: spaces or protocol differ; names each
  // field and both values.
  absl::StatusOr<const HostedModel*> CheckLink(const v1::LinkRequest& request) const;

  // As CheckLink, and INVALID_ARGUMENT naming field, value and limit: strategy, token ids, length,
  // first_token, hashes, secret, transfer id, encoder, rate, run of layers.
  absl::StatusOr<PrefillJob> Check(const v1::StartRequest& request) const;

  // What this node sends for the model: K/V, or codes of one of its encoders.
  static Space SpaceOf(const HostedModel& model);
  static Space CodeSpaceOf(const HostedModel& model, const CodeEncoder& encoder);

 private:
  absl::StatusOr<const HostedModel*> FindModel(const std::string& name) const;
  const ModelHost& host_;
};

}  // namespace baton
