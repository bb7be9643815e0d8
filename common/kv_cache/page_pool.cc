#include "common/kv_cache/page_pool.h"

#include <sys/mman.h>

#include <atomic>
#include <cassert>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton {

struct PagePool::Impl {
  Impl(std::byte* slab, std::size_t slab_bytes, std::size_t page_bytes, std::int64_t total)
      : slab(slab),
        slab_bytes(slab_bytes),
        page_bytes(page_bytes),
        total(total),
        refs(new std::atomic<std::uint32_t>[static_cast<std::size_t>(total)]()) {}
  ~Impl() { munmap(slab, slab_bytes); }

  // Not held by anybody; some of them may be promised.
  std::int64_t Unheld() const REQUIRES(mu) {
    return static_cast<std::int64_t>(recycled.size()) + (total - next_fresh);
  }
  std::int64_t Free() const REQUIRES(mu) { return Unheld() - reserved; }

  absl::Status Promise(const std::string& tag, std::int64_t pages) EXCLUDES(mu) {
    MutexLock lock(mu);
    if (pages > Free()) {
      return absl::ResourceExhaustedError(absl::StrCat("KV cache: ", pages, " pages needed for ",
                                                       tag, ", ", Free(), " of ", total,
                                                       " are free"));
    }
    if (pages > 0) {
      reserved += pages;
      reserved_by_tag[tag] += pages;
    }
    return absl::OkStatus();
  }

  void Unpromise(const std::string& tag, std::int64_t pages) REQUIRES(mu) {
    reserved -= pages;
    const auto it = reserved_by_tag.find(tag);
    it->second -= pages;
    if (it->second == 0) reserved_by_tag.erase(it);
  }

  // Pages used before come first: their memory is resident already.
  std::uint32_t TakeUnheld(const std::string& tag) EXCLUDES(mu) {
    MutexLock lock(mu);
    Unpromise(tag, 1);
    std::uint32_t id;
    if (!recycled.empty()) {
      id = recycled.back();
      recycled.pop_back();
    } else {
      id = static_cast<std::uint32_t>(next_fresh++);
    }
    refs[id].store(1, std::memory_order_relaxed);
    return id;
  }

  void Unref(std::uint32_t id) EXCLUDES(mu) {
    if (refs[id].fetch_sub(1, std::memory_order_acq_rel) == 1) {
      MutexLock lock(mu);
      recycled.push_back(id);
    }
  }

  std::byte* const slab;
  const std::size_t slab_bytes;
  const std::size_t page_bytes;
  const std::int64_t total;
  const std::unique_ptr<std::atomic<std::uint32_t>[]> refs;

  Mutex mu;
  std::vector<std::uint32_t> recycled GUARDED_BY(mu);
  std::int64_t next_fresh GUARDED_BY(mu) = 0;
  std::int64_t reserved GUARDED_BY(mu) = 0;
  std::map<std::string, std::int64_t> reserved_by_tag GUARDED_BY(mu);

  // Shared with the handles, which may outlive the pool.
  struct Reclaimers {
    Mutex mu;
    std::map<const void*, Reclaim> callbacks GUARDED_BY(mu);
  };
  const std::shared_ptr<Reclaimers> reclaimers = std::make_shared<Reclaimers>();
};

PageRef::PageRef(std::shared_ptr<PagePool> pool, std::uint32_t id, std::byte* data)
    : pool_(std::move(pool)), id_(id), data_(data) {}

PageRef::PageRef(const PageRef& other) : pool_(other.pool_), id_(other.id_), data_(other.data_) {
  if (pool_) pool_->impl_->refs[id_].fetch_add(1, std::memory_order_relaxed);
}

PageRef::PageRef(PageRef&& other) noexcept
    : pool_(std::move(other.pool_)),
      id_(std::exchange(other.id_, 0)),
      data_(std::exchange(other.data_, nullptr)) {}

PageRef& PageRef::operator=(PageRef other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(id_, other.id_);
  std::swap(data_, other.data_);
  return *this;
}

PageRef::~PageRef() {
  if (pool_) pool_->impl_->Unref(id_);
}

std::uint32_t PageRef::use_count() const {
  return pool_ ? pool_->impl_->refs[id_].load(std::memory_order_acquire) : 0;
}

Reservation::Reservation(std::shared_ptr<PagePool> pool, std::string tag, std::int64_t pages)
    : pool_(std::move(pool)), tag_(std::move(tag)), remaining_(pages) {}

Reservation::Reservation(Reservation&& other) noexcept
    : pool_(std::move(other.pool_)),
      tag_(std::move(other.tag_)),
      remaining_(std::exchange(other.remaining_, 0)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::move(other.pool_);
    tag_ = std::move(other.tag_);
    remaining_ = std::exchange(other.remaining_, 0);
  }
  return *this;
}

Reservation::~Reservation() { Release(); }

PageRef Reservation::Take() {
  assert(remaining_ > 0);
  const std::uint32_t id = pool_->impl_->TakeUnheld(tag_);
  --remaining_;
  return PageRef(pool_, id, pool_->impl_->slab + id * pool_->impl_->page_bytes);
}

absl::Status Reservation::Grow(std::int64_t pages) {
  if (!pool_) return absl::FailedPreconditionError("this reservation belongs to no pool");
  if (pages < 0) return absl::InvalidArgumentError(absl::StrCat("pages: ", pages, " is negative"));
  absl::Status status = pool_->impl_->Promise(tag_, pages);
  if (status.ok()) remaining_ += pages;
  return status;
}

void Reservation::Release() {
  if (remaining_ > 0) {
    MutexLock lock(pool_->impl_->mu);
    pool_->impl_->Unpromise(tag_, remaining_);
  }
  remaining_ = 0;
}

PagePool::PagePool(const KvPageLayout& layout, std::int64_t num_pages)
    : layout_(layout), total_(num_pages) {}

PagePool::~PagePool() = default;

absl::StatusOr<std::shared_ptr<PagePool>> PagePool::Create(const KvPageLayout& layout,
                                                           std::int64_t num_pages) {
  if (layout.head_dim <= 0 || layout.head_dim % 8 != 0 || layout.head_dim > 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim: ", layout.head_dim, " is not a multiple of 8 in [8, 256]"));
  }
  constexpr std::int64_t kMaxPages = std::numeric_limits<std::uint32_t>::max();
  if (num_pages <= 0 || num_pages > kMaxPages) {
    return absl::InvalidArgumentError(
        absl::StrCat("pages: ", num_pages, " is outside [1, ", kMaxPages, "]"));
  }
  const std::size_t bytes = layout.page_bytes() * static_cast<std::size_t>(num_pages);
  // Address space only: the kernel gives memory when a page is first written.
  void* slab = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (slab == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("KV cache: ", bytes, " bytes (", num_pages, " pages) cannot be mapped"));
  }
  std::shared_ptr<PagePool> pool(new PagePool(layout, num_pages));
  pool->impl_ =
      std::make_unique<Impl>(static_cast<std::byte*>(slab), bytes, layout.page_bytes(), num_pages);
  return pool;
}

absl::StatusOr<Reservation> PagePool::Reserve(std::string_view tag, std::int64_t pages) {
  if (pages < 0) return absl::InvalidArgumentError(absl::StrCat("pages: ", pages, " is negative"));
  std::string name(tag);
  absl::Status status = impl_->Promise(name, pages);
  if (!status.ok()) return status;
  return Reservation(shared_from_this(), std::move(name), pages);
}

PagePool::Stats PagePool::GetStats() const {
  MutexLock lock(impl_->mu);
  Stats stats;
  stats.total = total_;
  stats.free = impl_->Free();
  stats.reserved = impl_->reserved;
  stats.held = total_ - impl_->Unheld();
  stats.page_bytes = layout_.page_bytes();
  stats.reserved_by_tag = impl_->reserved_by_tag;
  return stats;
}

std::int64_t PagePool::free_pages() const {
  MutexLock lock(impl_->mu);
  return impl_->Free();
}

std::shared_ptr<void> PagePool::AddReclaimer(Reclaim reclaim) {
  auto reclaimers = impl_->reclaimers;
  // The handle's address is the key; its deleter takes the callback out under the lock.
  std::shared_ptr<void> handle(new char, [reclaimers](void* key) {
    {
      MutexLock lock(reclaimers->mu);
      reclaimers->callbacks.erase(key);
    }
    delete static_cast<char*>(key);
  });
  MutexLock lock(reclaimers->mu);
  reclaimers->callbacks.emplace(handle.get(), std::move(reclaim));
  return handle;
}

int PagePool::AskReclaim(std::int64_t pages, const void* self) {
  MutexLock lock(impl_->reclaimers->mu);
  int willing = 0;
  for (const auto& [key, reclaim] : impl_->reclaimers->callbacks) {
    if (key == self) continue;
    if (reclaim(pages)) ++willing;
  }
  return willing;
}

}  // namespace baton
