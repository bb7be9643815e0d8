// Byte-pair merging of one word.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"

namespace baton {

// Immutable but for a bounded cache with its own locks; usable from any thread.
class BpeModel {
 public:
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
  };

  // `merges`: best first. `byte_tokens`: the token of each single byte, -1 for none (such bytes
  // give no token). `whole_words`: words that become one token without merging, by their bytes.
  BpeModel(const std::vector<Merge>& merges, const std::array<int32_t, 256>& byte_tokens,
           absl::flat_hash_map<std::string, int32_t> whole_words);

  // Appends the ids of `word`. O(n log n) in its bytes.
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

  void MergeWord(std::string_view word, std::vector<int32_t>* ids) const;

  absl::flat_hash_map<uint64_t, Target> merges_;  // by (left, right)
  std::array<int32_t, 256> byte_tokens_;
  absl::flat_hash_map<std::string, int32_t> whole_words_;
  mutable std::array<Shard, kShards> cache_;
};

}  // namespace baton
