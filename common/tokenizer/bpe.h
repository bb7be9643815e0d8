// Byte-pair merging of one word.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/base/mutex.h"

namespace baton {

// What a word is made of before anything is merged, and what may merge.
struct BpeVocabulary {
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
    uint32_t rank;  // the lowest merges first; of equal ones, the leftmost
  };

  // True: the first symbols are bytes, each with its token. False: characters.
  bool byte_level = true;
  // By byte, -1 for none. Characters without a token fall back to these when each byte has one.
  std::array<int32_t, 256> byte_tokens{};
  absl::flat_hash_map<char32_t, int32_t> char_tokens;
  // A symbol with neither: this token, or nothing when < 0.
  int32_t unk = -1;
  bool fuse_unk = false;  // several in a row become one
  // True: characters without a token merge as well, under ids from `size` on, and fall back only
  // where nothing took them up (SentencePiece). False: they fall back before merging.
  bool fall_back_last = false;
  int32_t size = 0;
  std::vector<Merge> merges;
  absl::flat_hash_map<std::string, int32_t> whole_words;  // become one token without merging
  // (last, first): bytes or characters that meet inside some merge. Long words are cut between
  // others, when they may be cut at all.
  absl::flat_hash_set<uint64_t> joints;
  bool may_cut = false;

  static uint64_t Pair(uint32_t left, uint32_t right) {
    return static_cast<uint64_t>(left) << 32 | right;
  }
};

// Immutable but for a bounded cache with its own locks; usable from any thread.
class BpeModel {
 public:
  explicit BpeModel(BpeVocabulary vocabulary);

  // Appends the ids of `word`, which is shorter than 2 GiB. O(n log n) in its bytes; at most 16
  // bytes of memory for each of them beside the ids.
  void Encode(std::string_view word, std::vector<int32_t>* ids) const;

 private:
  static constexpr size_t kShards = 16;
  static constexpr size_t kShardEntries = 2048;
  static constexpr size_t kMaxCachedWord = 48;  // bytes

  struct Target {
    uint32_t rank;
    int32_t result;
  };
  struct Shard {
    Mutex mu;
    absl::flat_hash_map<std::string, std::vector<int32_t>> words GUARDED_BY(mu);
  };
  class Symbols;

  // A part that no merge can join with its neighbours.
  void EncodePart(std::string_view part, std::vector<int32_t>* ids) const;
  void MergePart(std::string_view part, std::vector<int32_t>* ids) const;
  void FirstSymbols(std::string_view part, Symbols* symbols) const;
  void MergeAll(Symbols* symbols) const;
  void FallBack(std::string_view bytes, std::vector<int32_t>* ids, bool* after_unk) const;
  bool HasBytes(std::string_view bytes) const;
  int32_t CharToken(char32_t c) const;

  BpeVocabulary vocab_;                           // without `merges`
  absl::flat_hash_map<uint64_t, Target> merges_;  // by (left, right)
  std::vector<int32_t> results_;                  // by rank; empty when a rank has several
  mutable std::array<Shard, kShards> cache_;
};

}  // namespace baton
