#include "prefill_node/block_codes.h"

namespace baton {

BlockCodes::BlockCodes(const CodeCut& whole) {
  std::size_t bytes = 0;
  for (const CodeCut::Layer& layer : whole.layers) {
    offsets_.push_back(bytes);
    bytes += layer.block_bytes;
  }
  bytes_.resize(bytes);
}

}  // namespace baton
