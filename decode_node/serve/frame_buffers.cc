#include "decode_node/serve/frame_buffers.h"

#include <cstddef>
#include <new>
#include <utility>

namespace baton {

std::optional<FrameBuffer> FrameBuffers::Take(std::int64_t bytes) {
  {
    MutexLock lock(mu_);
    auto best = kept_.end();
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      const bool fits = it->capacity() >= bytes && it->capacity() / 4 <= bytes;
      if (fits && (best == kept_.end() || it->capacity() < best->capacity())) best = it;
    }
    if (best != kept_.end()) {
      FrameBuffer found = std::move(*best);
      *best = std::move(kept_.back());
      kept_.pop_back();
      kept_bytes_ -= found.capacity();
      return found;
    }
  }
  std::unique_ptr<std::uint8_t[]> memory(new (std::nothrow)
                                             std::uint8_t[static_cast<std::size_t>(bytes)]);
  if (!memory) return std::nullopt;
  return FrameBuffer(std::move(memory), bytes);
}

void FrameBuffers::Give(FrameBuffer buffer) {
  if (buffer.capacity() < kLeastKept) return;
  MutexLock lock(mu_);
  if (kept_bytes_ + buffer.capacity() > max_kept_bytes_) return;
  kept_bytes_ += buffer.capacity();
  kept_.push_back(std::move(buffer));
}

std::int64_t FrameBuffers::kept_bytes() const {
  MutexLock lock(mu_);
  return kept_bytes_;
}

}  // namespace baton
