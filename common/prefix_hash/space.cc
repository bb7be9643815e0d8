#include "common/prefix_hash/space.h"

#include <xxhash.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/strings.h"

namespace baton {
namespace {

// Name and value of every field that counts, in the order of the canonical text.
std::vector<std::pair<std::string, std::string>> Fields(const Space& space) {
  const KvLayout& layout = space.layout;
  return {
      {"kind", std::string(SpaceKindName(space.kind))},
      {"weights_digest", space.weights_digest},
      {"tokenizer_digest", space.tokenizer_digest},
      {"layout.dtype", layout.dtype},
      {"layout.layers", std::to_string(layout.layers)},
      {"layout.kv_heads", std::to_string(layout.kv_heads)},
      {"layout.head_dim", std::to_string(layout.head_dim)},
      {"layout.page_rows", std::to_string(layout.page_rows)},
      {"layout.block_tokens", std::to_string(layout.block_tokens)},
      {"layout.rope", layout.rope},
      {"encoder_digest", space.encoder_digest},
      {"fidelity", space.fidelity.ToString()},
  };
}

// So that no value can pretend to be the next line.
std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string_view SpaceKindName(SpaceKind kind) {
  switch (kind) {
    case SpaceKind::kBaseKv:
      return "base_kv";
    case SpaceKind::kCode:
      return "code";
    case SpaceKind::kNativeKv:
      return "native_kv";
  }
  return "unknown";
}

std::string Space::CanonicalText() const {
  std::string text = "baton space v1\n";
  for (const auto& [name, value] : Fields(*this)) text += name + "=" + Escape(value) + "\n";
  return text;
}

std::string Space::Digest() const { return ContentDigest(CanonicalText()); }

std::string ContentDigest(std::string_view content) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(content.data(), content.size()));
  return HexEncode({reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest)});
}

absl::Status CompareSpaces(const Space& want, const Space& have) {
  const auto wanted = Fields(want);
  const auto had = Fields(have);
  std::string differences;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].second == had[i].second) continue;
    differences += fmt::format("{}{}: want {}, have {}", differences.empty() ? "" : "; ",
                               wanted[i].first, Escape(wanted[i].second), Escape(had[i].second));
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError("spaces differ: " + differences);
}

}  // namespace baton
