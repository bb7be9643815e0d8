// Fixed-size KV pages with exact accounting.
//
//   auto pool = PagePool::Create(layout, 4096);
//   BATON_ASSIGN_OR_RETURN(Reservation r, pool->Reserve("sequence", 90));
//   PageRef page = r.Take();        // counted; the last reference gives the page back
//
// A page is free, reserved (promised to a Reservation) or held (at least one PageRef). Free +
// reserved + held = total at every moment, and what Stats() says is what is held.
// Thread-safe. The bytes of a page are not synchronised by the pool: a writer publishes them
// (through the engine's queue) before anybody reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "kernels/kv_page.h"

namespace baton {

class PagePool;

// A counted reference to one page. Copying adds a reference; the empty state refers to nothing.
class PageRef {
 public:
  PageRef() = default;
  PageRef(const PageRef& other);
  PageRef(PageRef&& other) noexcept;
  PageRef& operator=(PageRef other) noexcept;
  ~PageRef();

  explicit operator bool() const { return pool_ != nullptr; }
  std::byte* data() const { return data_; }
  std::uint32_t id() const { return id_; }
  // References now held by anybody; 1 means the caller is the only holder.
  std::uint32_t use_count() const;

 private:
  friend class PagePool;
  friend class Reservation;
  PageRef(std::shared_ptr<PagePool> pool, std::uint32_t id, std::byte* data);
  std::shared_ptr<PagePool> pool_;
  std::uint32_t id_ = 0;
  std::byte* data_ = nullptr;
};

// A tagged promise of pages. Its destructor gives back what was not taken.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  std::int64_t remaining() const { return remaining_; }
  // Turns one reserved page into a held one. Precondition: remaining() > 0.
  PageRef Take();
  // Adds `pages` to the promise; RESOURCE_EXHAUSTED (nothing changes) when too few are free.
  absl::Status Grow(std::int64_t pages);
  void Release();

 private:
  friend class PagePool;
  Reservation(std::shared_ptr<PagePool> pool, std::string tag, std::int64_t pages);
  std::shared_ptr<PagePool> pool_;
  std::string tag_;
  std::int64_t remaining_ = 0;
};

class PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  struct Stats {
    std::int64_t total = 0;
    std::int64_t free = 0;
    std::int64_t reserved = 0;
    std::int64_t held = 0;
    std::size_t page_bytes = 0;
    std::map<std::string, std::int64_t> reserved_by_tag;
  };

  // INVALID_ARGUMENT for a bad layout, RESOURCE_EXHAUSTED when the memory cannot be mapped.
  static absl::StatusOr<std::shared_ptr<PagePool>> Create(const KvPageLayout& layout,
                                                          std::int64_t num_pages);
  ~PagePool();

  const KvPageLayout& layout() const { return layout_; }
  std::int64_t total_pages() const { return total_; }
  // RESOURCE_EXHAUSTED naming the need and what is free.
  absl::StatusOr<Reservation> Reserve(std::string_view tag, std::int64_t pages);
  Stats GetStats() const;
  // GetStats().free, without building the rest.
  std::int64_t free_pages() const;

  // Someone who can give pages back when asked (an engine's prefix cache). `reclaim(pages)` runs
  // on the asking thread under the pool's reclaim lock: it must only enqueue; false: there is
  // nothing to give. After the returned handle is gone it neither runs nor is running.
  using Reclaim = std::function<bool(std::int64_t pages)>;
  [[nodiscard]] std::shared_ptr<void> AddReclaimer(Reclaim reclaim);
  // Asks everybody but the holder of `self` (may be null) for pages. Returns how many of them may
  // have some.
  int AskReclaim(std::int64_t pages, const void* self);

 private:
  friend class PageRef;
  friend class Reservation;
  PagePool(const KvPageLayout& layout, std::int64_t num_pages);
  struct Impl;
  KvPageLayout layout_;
  std::int64_t total_ = 0;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
