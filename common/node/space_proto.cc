#include "common/node/space_proto.h"

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/prefix_hash/block_hash.h"
#include "kernels/kv_page.h"

namespace baton {

KvLayout MakeKvLayout(const ModelConfig& config, DType kv_dtype) {
  KvLayout layout;
  layout.dtype = DTypeName(kv_dtype);
  layout.layers = static_cast<uint32_t>(config.layers);
  layout.kv_heads = static_cast<uint32_t>(config.kv_heads);
  layout.head_dim = static_cast<uint32_t>(config.head_dim);
  layout.page_rows = kPageRows;
  layout.block_tokens = kBlockTokens;
  // The frequencies themselves: GGUF and HF spell the same scaling differently.
  const std::vector<float> freqs = RopeInverseFrequencies(config);
  layout.rope =
      absl::StrFormat("theta=%.17g,inv_freq=%s", config.rope.theta,
                      ContentDigest(std::string_view(reinterpret_cast<const char*>(freqs.data()),
                                                     freqs.size() * sizeof(float))));
  if (config.rope.attention_factor != 1.0) {
    layout.rope += absl::StrFormat(",scale=%.9g", config.rope.attention_factor);
  }
  // Equal weights under another window are other K and V.
  if (config.sliding_window.has_value()) {
    layout.rope += absl::StrFormat(",window=%d,windowed=", *config.sliding_window);
    for (const bool windowed : config.windowed_layers) layout.rope += windowed ? '1' : '0';
  }
  return layout;
}

v1::Space ToProto(const Space& space) {
  v1::Space p;
  switch (space.kind) {
    case SpaceKind::kBaseKv:
      p.set_kind(v1::Space::BASE_KV);
      break;
    case SpaceKind::kCode:
      p.set_kind(v1::Space::CODE);
      break;
    case SpaceKind::kNativeKv:
      p.set_kind(v1::Space::NATIVE_KV);
      break;
  }
  p.set_digest(space.Digest());
  p.set_weights_digest(space.weights_digest);
  p.set_tokenizer_digest(space.tokenizer_digest);
  v1::KvLayout* l = p.mutable_layout();
  l->set_dtype(space.layout.dtype);
  l->set_layers(space.layout.layers);
  l->set_kv_heads(space.layout.kv_heads);
  l->set_head_dim(space.layout.head_dim);
  l->set_page_rows(space.layout.page_rows);
  l->set_block_tokens(space.layout.block_tokens);
  l->set_rope(space.layout.rope);
  if (space.kind != SpaceKind::kBaseKv) p.set_fidelity(space.fidelity.ToString());
  p.set_encoder_digest(space.encoder_digest);
  return p;
}

absl::StatusOr<Space> FromProto(const v1::Space& proto) {
  Space space;
  switch (proto.kind()) {
    case v1::Space::BASE_KV:
      space.kind = SpaceKind::kBaseKv;
      break;
    case v1::Space::CODE:
      space.kind = SpaceKind::kCode;
      break;
    case v1::Space::NATIVE_KV:
      space.kind = SpaceKind::kNativeKv;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("space.kind: ", proto.kind(), " is not one this version knows"));
  }
  space.weights_digest = proto.weights_digest();
  space.tokenizer_digest = proto.tokenizer_digest();
  const v1::KvLayout& l = proto.layout();
  space.layout = {l.dtype(),     l.layers(),       l.kv_heads(), l.head_dim(),
                  l.page_rows(), l.block_tokens(), l.rope()};
  space.encoder_digest = proto.encoder_digest();
  if (!proto.fidelity().empty()) {
    BATON_ASSIGN_OR_RETURN(space.fidelity, Fidelity::Parse(proto.fidelity()));
  }
  if (!proto.digest().empty() && proto.digest() != space.Digest()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "space.digest: ", proto.digest(), " is not the digest of its fields, ", space.Digest()));
  }
  return space;
}

absl::Status CompareWants(const Space& want, const Space& have) {
  if (!want.weights_digest.empty()) return CompareSpaces(want, have);
  Space any = want;
  any.weights_digest = have.weights_digest;
  return CompareSpaces(any, have);
}

v1::NodeIdentity MakeIdentity(const std::string& name, std::uint64_t incarnation,
                              const std::string& role) {
  v1::NodeIdentity id;
  id.set_name(name);
  id.set_incarnation(incarnation);
  id.set_version(std::string(Version()));
  id.set_protocol(kProtocolVersion);
  id.set_role(role);
  return id;
}

absl::Status CheckProtocol(const v1::NodeIdentity& peer) {
  if (peer.protocol() == kProtocolVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("hand-off protocol differs: node \"", peer.name(), "\" (version ",
                   peer.version(), ") speaks ", peer.protocol(), ", this node ", kProtocolVersion));
}

}  // namespace baton
