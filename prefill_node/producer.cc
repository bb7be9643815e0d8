#include "prefill_node/producer.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/node/space_proto.h"
#include "common/prefix_hash/block_hash.h"
#include "common/scd/q4_kv.h"
#include "common/weights/layer_run.h"

namespace baton {
namespace {

absl::Status Bad(const std::string& field, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

absl::Status CheckWants(const v1::Space& wants, const HostedModel& model) {
  BATON_ASSIGN_OR_RETURN(const Space want, FromProto(wants));
  return CompareWants(want, Producer::SpaceOf(model));
}

absl::StatusOr<std::vector<std::int32_t>> CheckTokens(const v1::StartRequest& request,
                                                      const HostedModel& model) {
  if (request.token_ids().empty()) return Bad("token_ids", "empty");
  if (request.token_ids_size() > model.max_context) {
    return Bad("token_ids", absl::StrCat("a prefix of ", request.token_ids_size(),
                                         " tokens is over this producer's context of ",
                                         model.max_context, " for \"", model.name, "\""));
  }
  std::vector<std::int32_t> tokens;
  tokens.reserve(static_cast<size_t>(request.token_ids_size()));
  for (int i = 0; i < request.token_ids_size(); ++i) {
    const std::int64_t id = request.token_ids(i);
    if (id < 0 || id >= model.vocab) {
      return Bad(absl::StrCat("token_ids[", i, "]"),
                 absl::StrCat(id, " is outside the vocabulary of ", model.vocab));
    }
    tokens.push_back(static_cast<std::int32_t>(id));
  }
  return tokens;
}

// Hashes are computed here: a wrong one from elsewhere would poison the cache.
absl::StatusOr<std::vector<BlockHash>> CheckHashes(const v1::StartRequest& request,
                                                   const std::vector<std::int32_t>& tokens,
                                                   const HostedModel& model) {
  std::vector<BlockHash> hashes =
      ChainHashes(tokens, ChainSeed(model.tokenizer->digest(), request.scope()));
  for (int i = 0; i < request.block_hashes_size(); ++i) {
    if (static_cast<size_t>(i) >= hashes.size() || hashes[i].Hex() != request.block_hashes(i)) {
      return Bad(absl::StrCat("block_hashes[", i, "]"),
                 "is not the hash of that block of token_ids in this scope");
    }
  }
  return hashes;
}

absl::StatusOr<CodeJob> CheckCodes(const v1::StartRequest& request, const HostedModel& model) {
  CodeJob codes;
  for (const auto& encoder : model.encoders) {
    if (encoder->digest() == request.encoder()) codes.encoder = encoder;
  }
  if (!codes.encoder) {
    return Bad("encoder", absl::StrCat("\"", model.name, "\" has no codec with the encoder \"",
                                       request.encoder(), "\" here (models[].codecs)"));
  }
  codes.cut = codes.encoder->whole();
  if (request.code_bytes_per_token() > 0) {
    auto cut = CutCode(codes.encoder->shape(), request.code_bytes_per_token());
    if (!cut.ok()) return Bad("code_bytes_per_token", std::string(cut.status().message()));
    codes.cut = *std::move(cut);
  }
  codes.space = Producer::CodeSpaceOf(model, *codes.encoder).Digest();
  codes.turn =
      absl::StrCat(Producer::SpaceOf(model).Digest(), " ", CodeSourceName(codes.encoder->source()));
  for (const auto& other : model.encoders) {
    if (other != codes.encoder && other->source() == codes.encoder->source()) {
      codes.others.push_back({other, Producer::CodeSpaceOf(model, *other).Digest()});
    }
  }
  return codes;
}

absl::StatusOr<LayerRun> CheckRunLayers(const v1::StartRequest& request, const HostedModel& model) {
  auto run = ParseLayerRun(request.run_layers());
  if (!run.ok()) return Bad("run_layers", std::string(run.status().message()));
  const auto layers = static_cast<int>(model.base_space.layout.layers);
  if (run->end <= layers) return *run;
  return Bad("run_layers", absl::StrCat(LayerRunText(*run), "; \"", model.name,
                                        "\" has the layers 0-", layers - 1));
}

// Blocks of a hand-off end where a hash block ends.
static_assert(kCodeBlockRows == kBlockTokens);

}  // namespace

Space Producer::CodeSpaceOf(const HostedModel& model, const CodeEncoder& encoder) {
  Space space = SpaceOf(model);
  space.kind = SpaceKind::kCode;
  space.encoder_digest = encoder.digest();
  space.fidelity = Fidelity::Code(encoder.digest(), encoder.whole().bytes_per_token());
  return space;
}

Space Producer::SpaceOf(const HostedModel& model) {
  Space space = model.base_space;
  space.weights_digest = model.weights_digest;
  return space;
}

absl::StatusOr<const HostedModel*> Producer::FindModel(const std::string& name) const {
  const HostedModel* model = host_.Find(name);
  if (model != nullptr) return model;
  return absl::NotFoundError(
      absl::StrCat("base_model: this producer has no \"", name, "\"; it has ", host_.ModelNames()));
}

absl::StatusOr<const HostedModel*> Producer::CheckLink(const v1::LinkRequest& request) const {
  BATON_RETURN_IF_ERROR(CheckProtocol(request.from()));
  BATON_ASSIGN_OR_RETURN(const HostedModel* model, FindModel(request.base_model()));
  BATON_RETURN_IF_ERROR(CheckWants(request.wants(), *model));
  return model;
}

absl::StatusOr<PrefillJob> Producer::Check(const v1::StartRequest& request) const {
  PrefillJob job;
  BATON_ASSIGN_OR_RETURN(job.model, FindModel(request.base_model()));
  BATON_RETURN_IF_ERROR(CheckWants(request.wants(), *job.model));
  const auto coding = ParseCoding(request.strategy());
  if (!coding) {
    return Bad("strategy",
               absl::StrCat("\"", request.strategy(), "\"; allowed: raw, q4, reuse, selective"));
  }
  job.coding = *coding;
  if (request.transfer_id() == 0) return Bad("transfer_id", "0");
  auto secret = MakeFrameSecret(request.secret());
  if (!secret.ok()) return Bad("secret", std::string(secret.status().message()));
  job.secret = *secret;
  BATON_ASSIGN_OR_RETURN(job.request.tokens, CheckTokens(request, *job.model));
  if (request.first_token() >= job.request.tokens.size()) {
    return Bad("first_token", absl::StrCat(request.first_token(), " is not below the prefix of ",
                                           job.request.tokens.size(), " tokens"));
  }
  BATON_ASSIGN_OR_RETURN(job.request.cache.blocks,
                         CheckHashes(request, job.request.tokens, *job.model));
  job.request.cache.exact_space = SpaceOf(*job.model).Digest();
  job.request.request_id = request.request_id();
  job.request.adapter = job.model->adapter;
  job.request.prefill_only = true;
  job.first_token = static_cast<std::int32_t>(request.first_token());
  // Whole pages; whole groups of codes; whole blocks.
  std::int32_t unit = job.coding == Coding::kQ4 ? kQ4GroupRows : kPageRows;
  if (job.coding == Coding::kReuse) {
    unit = kCodeBlockRows;
    if (job.request.tokens.size() % kCodeBlockRows != 0) {
      return Bad("token_ids", absl::StrCat(job.request.tokens.size(), " tokens; codes are made of ",
                                           "whole blocks of ", kCodeBlockRows));
    }
    BATON_ASSIGN_OR_RETURN(job.codes, CheckCodes(request, *job.model));
    job.codes->blocks = job.request.cache.blocks;
    job.codes->first_block = job.first_token / kCodeBlockRows;
    job.codes->uncoded_tokens = kSinkTokens;
    job.request.report = job.codes->encoder->source() == CodeSource::kHidden
                             ? ReportedStates::kHidden
                             : ReportedStates::kKv;
  }
  if (job.coding == Coding::kSelective) {
    BATON_ASSIGN_OR_RETURN(job.request.run, CheckRunLayers(request, *job.model));
    job.request.report = ReportedStates::kAroundRun;
  }
  job.request.report_from = job.first_token / unit * unit;
  return job;
}

}  // namespace baton
