// Codes of one block of 64 tokens, every layer, all components.
#pragma once

#include <cstddef>
#include <vector>

#include "common/scd/code_cut.h"

namespace baton {

class BlockCodes {
 public:
  explicit BlockCodes(const CodeCut& whole);

  std::byte* layer(int layer) { return bytes_.data() + offsets_[static_cast<std::size_t>(layer)]; }
  const std::byte* layer(int layer) const {
    return bytes_.data() + offsets_[static_cast<std::size_t>(layer)];
  }
  // All layers, one after the other.
  std::byte* data() { return bytes_.data(); }
  const std::byte* data() const { return bytes_.data(); }
  std::size_t bytes() const { return bytes_.size(); }

 private:
  std::vector<std::size_t> offsets_;
  std::vector<std::byte> bytes_;
};

}  // namespace baton
