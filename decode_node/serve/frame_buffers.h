// Memory that frames land in, kept from one frame to the next: fresh memory of this size comes from
// the kernel page by page, which costs a receiver as much as the bytes themselves.
//
//   FrameBuffers buffers(64 << 20);
//   std::optional<FrameBuffer> buffer = buffers.Take(bytes);
//   ... buffer->data() ...
//   buffers.Give(*std::move(buffer));
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/mutex.h"

namespace baton {

class FrameBuffer {
 public:
  FrameBuffer() = default;
  std::uint8_t* data() const { return memory_.get(); }
  std::int64_t capacity() const { return capacity_; }

 private:
  friend class FrameBuffers;
  FrameBuffer(std::unique_ptr<std::uint8_t[]> memory, std::int64_t capacity)
      : memory_(std::move(memory)), capacity_(capacity) {}

  std::unique_ptr<std::uint8_t[]> memory_;
  std::int64_t capacity_ = 0;
};

class FrameBuffers {
 public:
  // Smaller ones are left to the allocator, which keeps them itself.
  static constexpr std::int64_t kLeastKept = 128 << 10;

  // At most `max_kept_bytes` wait for a next frame.
  explicit FrameBuffers(std::int64_t max_kept_bytes) : max_kept_bytes_(max_kept_bytes) {}

  // Of at least `bytes`, and at most four times as many; what is in it means nothing. Nothing when
  // there is no memory.
  std::optional<FrameBuffer> Take(std::int64_t bytes) EXCLUDES(mu_);
  void Give(FrameBuffer buffer) EXCLUDES(mu_);

  std::int64_t kept_bytes() const EXCLUDES(mu_);

 private:
  const std::int64_t max_kept_bytes_;
  mutable Mutex mu_;
  std::vector<FrameBuffer> kept_ GUARDED_BY(mu_);
  std::int64_t kept_bytes_ GUARDED_BY(mu_) = 0;
};

}  // namespace baton
