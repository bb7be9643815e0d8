// Spaces and identities between this process and the protocol.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/prefix_hash/space.h"
#include "common/weights/model_config.h"
#include "kernels/dtype.h"
#include "proto/common.pb.h"

namespace baton {

// Layout of K/V of this model when stored as `kv_dtype`.
KvLayout MakeKvLayout(const ModelConfig& config, DType kv_dtype);

v1::Space ToProto(const Space& space);
// INVALID_ARGUMENT names the field. A given digest must be that of the other fields.
absl::StatusOr<Space> FromProto(const v1::Space& proto);

// What a consumer can import against what a producer would send: as CompareSpaces, but empty
// `want.weights_digest` accepts any weights (the fidelity then names those that came).
absl::Status CompareWants(const Space& want, const Space& have);

v1::NodeIdentity MakeIdentity(const std::string& name, std::uint64_t incarnation,
                              const std::string& role);
// FAILED_PRECONDITION when the peer speaks another version of the hand-off protocol.
absl::Status CheckProtocol(const v1::NodeIdentity& peer);

}  // namespace baton
