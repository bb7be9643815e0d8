// A space says what is stored for a block: whose K/V, in which layout, how true. Every stored
// object is keyed by (block hash, space digest). Digests are of contents, never of names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/prefix_hash/fidelity.h"

namespace baton {

enum class SpaceKind { kBaseKv, kCode, kNativeKv };
std::string_view SpaceKindName(SpaceKind kind);  // "base_kv", "code", "native_kv"

// Shape and arithmetic of stored K/V.
struct KvLayout {
  std::string dtype;  // "fp32", "bf16", "fp16"
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t page_rows = 0;     // token rows in a page
  uint32_t block_tokens = 0;  // tokens in a hash block
  std::string rope;           // canonical text of the RoPE parameters

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

struct Space {
  SpaceKind kind = SpaceKind::kBaseKv;
  std::string weights_digest;  // weights as served (dtype, quantisation, adapter included)
  std::string tokenizer_digest;
  KvLayout layout;
  std::string encoder_digest;  // kCode only: of the encoder; empty otherwise
  Fidelity fidelity;           // kNativeKv: of the K/V; kCode: Code(codec, rate)

  // The text that is digested: one "field=value" a line in fixed order, values escaped.
  std::string CanonicalText() const;
  // 32 hex digits: XXH3-128 of CanonicalText().
  std::string Digest() const;

  friend bool operator==(const Space&, const Space&) = default;
};

// 32 hex digits of XXH3-128 over any content; for digests of weights, tokenizers, templates.
std::string ContentDigest(std::string_view content);

// Ok when equal. FAILED_PRECONDITION naming every differing field and both values, e.g.
// "spaces differ: layout.head_dim: want 64, have 128".
absl::Status CompareSpaces(const Space& want, const Space& have);

}  // namespace baton
