// A tiktoken vocabulary (lines of base64 bytes and a rank) -> TokenizerSpec.
//
// The file has no merges: tiktoken joins the neighbours whose bytes together have the lowest rank.
// The pair a token is made of is found by splitting the token with the lower ranks alone, as
// Hugging Face does when it converts such a file.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/json_access.h"
#include "common/tokenizer/tokenizer_spec.h"

namespace baton {
namespace {

using tokenizer_json::Json;

constexpr size_t kQwenRanks = 151643;
constexpr int kQwenExtras = 205;

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(Cat("tiktoken vocabulary: ", what));
}

class Ranks {
 public:
  absl::Status Read(std::string_view text) {
    size_t line_number = 0;
    while (!text.empty()) {
      ++line_number;
      const size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty()) BATON_RETURN_IF_ERROR(ReadLine(line, line_number));
    }
    if (bytes_.empty()) return Malformed("no ranks");
    for (size_t rank = 0; rank < bytes_.size(); ++rank) {
      if (bytes_[rank].empty()) return Malformed(Cat("rank ", rank, " is missing"));
    }
    return absl::OkStatus();
  }

  const std::vector<std::string>& bytes() const { return bytes_; }

  // The parts that `rank`'s bytes fall into when only lower ranks may join.
  std::vector<std::string_view> Parts(size_t rank) const {
    const std::string_view token = bytes_[rank];
    std::vector<std::string_view> parts;
    for (size_t i = 0; i < token.size(); ++i) parts.push_back(token.substr(i, 1));
    while (parts.size() > 2) {
      size_t best = 0;
      int32_t best_rank = static_cast<int32_t>(rank);
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const int32_t joined = RankOf(Join(parts[i], parts[i + 1]));
        if (joined < best_rank) {
          best_rank = joined;
          best = i;
        }
      }
      if (best_rank == static_cast<int32_t>(rank)) break;
      parts[best] = Join(parts[best], parts[best + 1]);
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    return parts;
  }

 private:
  static std::string_view Join(std::string_view left, std::string_view right) {
    return {left.data(), left.size() + right.size()};
  }

  int32_t RankOf(std::string_view bytes) const {
    const auto it = ranks_.find(AbslView(bytes));
    return it == ranks_.end() ? std::numeric_limits<int32_t>::max() : it->second;
  }

  absl::Status ReadLine(std::string_view line, size_t number) {
    const size_t space = line.find(' ');
    std::string token;
    int32_t rank = -1;
    if (space == std::string_view::npos ||
        !absl::Base64Unescape(AbslView(line.substr(0, space)), &token) ||
        !absl::SimpleAtoi(AbslView(line.substr(space + 1)), &rank)) {
      return Malformed(Cat("line ", number, " is not base64 and a rank"));
    }
    if (token.empty() || token.size() > kMaxPieceBytes) {
      return Malformed(Cat("line ", number, ": a token of ", token.size(),
                           " bytes, must have 1 to ", kMaxPieceBytes));
    }
    if (rank < 0 || rank >= kMaxVocab) {
      return Malformed(Cat("line ", number, ": rank ", rank, " is outside [0, ", kMaxVocab, ")"));
    }
    const auto index = static_cast<size_t>(rank);
    if (index >= bytes_.size()) bytes_.resize(index + 1);
    if (!bytes_[index].empty() || !ranks_.try_emplace(token, rank).second) {
      return Malformed(Cat("line ", number, ": rank ", rank, " or its bytes were there before"));
    }
    bytes_[index] = std::move(token);
    return absl::OkStatus();
  }

  std::vector<std::string> bytes_;  // by rank
  absl::flat_hash_map<std::string, int32_t> ranks_;
};

std::string Spelled(std::string_view bytes) {
  std::string text;
  for (char b : bytes) text += ByteLevelSpelling(static_cast<uint8_t>(b));
  return text;
}

// Special tokens of the first Qwen, for a folder that doesn't list its own.
void AddQwenTokens(TokenizerSpec* spec) {
  std::vector<std::string> texts = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (int i = 0; i < kQwenExtras; ++i) texts.push_back(Cat("<|extra_", i, "|>"));
  for (size_t i = 0; i < texts.size(); ++i) {
    AddedToken token;
    token.id = static_cast<int32_t>(kQwenRanks + i);
    token.content = texts[i];
    token.special = true;
    spec->added.push_back(std::move(token));
  }
}

bool SaysQwen(const Json& config) {
  const std::string name = tokenizer_json::StringOr(config, "tokenizer_class", "");
  return name.starts_with("Qwen") || name.starts_with("QWen");
}

}  // namespace

absl::StatusOr<TokenizerSpec> SpecFromTiktoken(std::string_view text,
                                               std::string_view tokenizer_config_json) {
  Ranks ranks;
  BATON_RETURN_IF_ERROR(ranks.Read(text));
  const size_t count = ranks.bytes().size();
  const Json config = Json::parse(tokenizer_config_json, nullptr, /*allow_exceptions=*/false);
  if (count != kQwenRanks && !SaysQwen(config)) {
    return absl::UnimplementedError(
        Cat("tiktoken vocabulary of ", count, " ranks is not known (Qwen's is: ", kQwenRanks,
            " ranks, or a tokenizer_class of Qwen's in tokenizer_config.json)"));
  }
  TokenizerSpec spec;
  NormalizerStep nfc;
  nfc.kind = NormalizerStep::Kind::kNfc;
  spec.normalizer = {nfc};
  SplitStep split;
  split.pattern = kQwen2Pattern;
  spec.splits = {split};
  for (size_t rank = 0; rank < count; ++rank) {
    spec.tokens.push_back(Spelled(ranks.bytes()[rank]));
    if (ranks.bytes()[rank].size() == 1) continue;
    const auto parts = ranks.Parts(rank);
    if (parts.size() == 2) {
      spec.merges.emplace_back(Spelled(parts[0]), Spelled(parts[1]));
    } else {
      spec.ignore_merges = true;  // tiktoken knows this one as a whole word only
    }
  }
  if (count == kQwenRanks && tokenizer_json::At(config, "added_tokens_decoder").is_null()) {
    AddQwenTokens(&spec);
  }
  BATON_RETURN_IF_ERROR(ApplyTokenizerConfig(tokenizer_config_json, /*with_added=*/true, &spec));
  if (!spec.eos_id) spec.eos_id = FindToken(spec, "<|endoftext|>");
  return spec;
}

}  // namespace baton
