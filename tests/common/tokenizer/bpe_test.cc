#include "common/tokenizer/bpe.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <random>

#include "gtest/gtest.h"
#include "tests/support/sanitized.h"

namespace baton {
namespace {

// Letters 'a'... are tokens 0...; merges join random tokens to new ones.
BpeVocabulary RandomVocabulary(std::mt19937* rng, int letters, int merges, bool scored) {
  BpeVocabulary vocab;
  vocab.byte_tokens.fill(-1);
  std::vector<std::string> texts;
  for (int i = 0; i < letters; ++i) {
    vocab.byte_tokens[static_cast<size_t>('a' + i)] = i;
    texts.emplace_back(1, static_cast<char>('a' + i));
  }
  for (int i = 0; i < merges; ++i) {
    const auto left = static_cast<int32_t>((*rng)() % texts.size());
    const auto right = static_cast<int32_t>((*rng)() % texts.size());
    const std::string text = texts[static_cast<size_t>(left)] + texts[static_cast<size_t>(right)];
    if (text.size() > 12) continue;
    auto it = std::find(texts.begin(), texts.end(), text);
    if (it == texts.end()) it = texts.insert(texts.end(), text);
    const auto result = static_cast<int32_t>(it - texts.begin());
    // With scores the rank belongs to the result, and few ranks make many ties.
    const auto rank = static_cast<uint32_t>(scored ? result % 5 : i);
    vocab.merges.push_back({left, right, result, rank});
    vocab.joints.insert(
        BpeVocabulary::Pair(static_cast<uint8_t>(texts[static_cast<size_t>(left)].back()),
                            static_cast<uint8_t>(texts[static_cast<size_t>(right)].front())));
  }
  vocab.size = static_cast<int32_t>(texts.size());
  vocab.may_cut = true;
  return vocab;
}

// By the definition: again and again the best pair, the leftmost of equals.
std::vector<int32_t> Slowly(const BpeVocabulary& vocab, const std::string& word) {
  std::vector<int32_t> ids;
  for (char c : word) ids.push_back(vocab.byte_tokens[static_cast<uint8_t>(c)]);
  const auto find = [&](int32_t left, int32_t right) -> const BpeVocabulary::Merge* {
    const BpeVocabulary::Merge* found = nullptr;
    for (const auto& merge : vocab.merges) {
      if (merge.left == left && merge.right == right) found = &merge;  // the last one counts
    }
    return found;
  };
  for (;;) {
    const BpeVocabulary::Merge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto* merge = find(ids[i], ids[i + 1]);
      if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
        best = merge;
        at = i;
      }
    }
    if (best == nullptr) return ids;
    ids[at] = best->result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(BpeTest, SameAsTheDefinition) {
  std::mt19937 rng(7);
  for (int round = 0; round < 60; ++round) {
    const bool scored = round % 2 == 1;
    const BpeVocabulary vocab = RandomVocabulary(&rng, 2 + round % 6, 40, scored);
    if (!scored) {
      // Two merges with one result may stand in for each other in `tokenizers`, not here.
      std::vector<int32_t> results;
      for (const auto& merge : vocab.merges) results.push_back(merge.result);
      std::sort(results.begin(), results.end());
      if (std::adjacent_find(results.begin(), results.end()) != results.end()) continue;
    }
    const BpeModel model(vocab);
    for (int i = 0; i < 12; ++i) {
      std::string word(1 + rng() % 70, 'a');
      for (char& c : word) c = static_cast<char>('a' + rng() % (2 + round % 6));
      std::vector<int32_t> ids;
      model.Encode(word, &ids);
      EXPECT_EQ(ids, Slowly(vocab, word)) << word << " round " << round;
    }
  }
}

TEST(BpeTest, CuttingChangesNothing) {
  std::mt19937 rng(11);
  for (int round = 0; round < 20; ++round) {
    BpeVocabulary vocab = RandomVocabulary(&rng, 12, 30, round % 2 == 1);
    const BpeModel cuts(vocab);
    vocab.may_cut = false;
    const BpeModel whole(vocab);
    for (int i = 0; i < 20; ++i) {
      std::string word(50 + rng() % 400, 'a');
      for (char& c : word) c = static_cast<char>('a' + rng() % 12);
      std::vector<int32_t> a;
      std::vector<int32_t> b;
      cuts.Encode(word, &a);
      whole.Encode(word, &b);
      EXPECT_EQ(a, b) << word;
    }
  }
}

// The longest word there is: 16 MiB, each of whose bytes waits in the queue to merge.
TEST(BpeTest, AHugeWordTakesBoundedMemory) {
  BpeVocabulary vocab;
  vocab.byte_tokens.fill(0);
  vocab.size = 20;
  vocab.may_cut = true;
  for (int32_t i = 0; i < 15; ++i) {
    vocab.merges.push_back({i, i, i + 1, static_cast<uint32_t>(i)});
  }
  vocab.joints.insert(BpeVocabulary::Pair('A', 'A'));
  const BpeModel model(vocab);
  // Sanitizers take their time, and memory of their own.
  const size_t size = BATON_SANITIZED ? size_t{1} << 20 : size_t{16} << 20;
  const std::string word(size, 'A');
  const auto peak_mib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss / 1024;
  };
  const auto before = peak_mib();
  std::vector<int32_t> ids;
  model.Encode(word, &ids);
  EXPECT_EQ(ids, std::vector<int32_t>(size >> 15, 15));
  if (!BATON_SANITIZED) {
    EXPECT_LT(peak_mib() - before, 288);  // 16 bytes for each byte, and room for the test
  }
}

}  // namespace
}  // namespace baton
