// Scratch memory of a thread, kept for its next call. Internal to the room.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace baton {

// Who holds a buffer: two users on one thread at a time must differ.
enum class ScratchSlot { kPackedRows, kAccumulators, kWeights, kAttention, kQueries, kCount };

// At least `floats` floats aligned to 64 bytes, valid until the thread's next call with the same
// slot. The contents are undefined.
inline float* ThreadScratch(ScratchSlot slot, std::size_t floats) {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  struct Buffer {
    std::unique_ptr<float, Free> data;
    std::size_t size = 0;
  };
  static thread_local Buffer buffers[static_cast<int>(ScratchSlot::kCount)];
  Buffer& b = buffers[static_cast<int>(slot)];
  if (b.size < floats) {
    const std::size_t bytes = (floats * sizeof(float) + 4095) / 4096 * 4096;
    b.size = 0;
    b.data.reset();
    b.data.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (b.data == nullptr) throw std::bad_alloc();
    b.size = bytes / sizeof(float);
  }
  return b.data.get();
}

}  // namespace baton
