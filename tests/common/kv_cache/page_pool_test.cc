#include "common/kv_cache/page_pool.h"

#include <atomic>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr KvPageLayout kLayout{.head_dim = 16, .dtype = DType::kF32};

void ExpectAccounts(const PagePool& pool, std::int64_t reserved, std::int64_t held) {
  const PagePool::Stats stats = pool.GetStats();
  EXPECT_EQ(stats.reserved, reserved);
  EXPECT_EQ(stats.held, held);
  EXPECT_EQ(stats.free + stats.reserved + stats.held, stats.total);
  EXPECT_EQ(pool.free_pages(), stats.free);
  std::int64_t by_tag = 0;
  for (const auto& [tag, pages] : stats.reserved_by_tag) {
    EXPECT_GT(pages, 0) << tag;
    by_tag += pages;
  }
  EXPECT_EQ(by_tag, reserved);
}

TEST(PagePool, RefusesBadLayoutsAndSizes) {
  for (const int head_dim : {0, -8, 12, 264}) {
    const auto pool = PagePool::Create({.head_dim = head_dim, .dtype = DType::kF32}, 4);
    EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument) << head_dim;
    EXPECT_THAT(pool.status().message(), HasSubstr("head_dim"));
  }
  for (const std::int64_t pages : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 40}) {
    EXPECT_EQ(PagePool::Create(kLayout, pages).status().code(), absl::StatusCode::kInvalidArgument);
  }
  // Far more address space than exists.
  EXPECT_EQ(PagePool::Create({.head_dim = 256, .dtype = DType::kF32}, 0xFFFFFFFFll).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(PagePool, RefusalNamesNeedAndFree) {
  auto pool = *PagePool::Create(kLayout, 10);
  auto first = pool->Reserve("a", 7);
  ASSERT_TRUE(first.ok());
  const auto second = pool->Reserve("b", 4);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(second.status().message(), HasSubstr("4 pages needed for b, 3 of 10 are free"));
  EXPECT_EQ(pool->Reserve("b", -1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(first->Grow(4).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(first->remaining(), 7);
  ExpectAccounts(*pool, 7, 0);
}

TEST(PagePool, PagesAreAlignedDistinctAndWritable) {
  auto pool = *PagePool::Create(kLayout, 8);
  auto reservation = *pool->Reserve("a", 8);
  std::vector<PageRef> pages;
  std::set<std::byte*> seen;
  for (int i = 0; i < 8; ++i) {
    pages.push_back(reservation.Take());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pages.back().data()) % 64, 0u);
    EXPECT_TRUE(seen.insert(pages.back().data()).second);
    std::memset(pages.back().data(), i, kLayout.page_bytes());
  }
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(static_cast<int>(pages[i].data()[kLayout.page_bytes() - 1]), i);
  }
}

TEST(PagePool, LastReferenceGivesBack) {
  auto pool = *PagePool::Create(kLayout, 2);
  auto reservation = *pool->Reserve("a", 1);
  PageRef a = reservation.Take();
  EXPECT_EQ(a.use_count(), 1u);
  PageRef b = a;
  EXPECT_EQ(a.use_count(), 2u);
  PageRef c = std::move(a);
  EXPECT_EQ(c.use_count(), 2u);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): the empty state is promised
  c = PageRef();
  EXPECT_EQ(b.use_count(), 1u);
  ExpectAccounts(*pool, 0, 1);
  b = b;  // NOLINT(clang-diagnostic-self-assign-overloaded)
  EXPECT_EQ(b.use_count(), 1u);
  b = PageRef();
  ExpectAccounts(*pool, 0, 0);
}

TEST(PagePool, OutlivesItsOwnerWhileReferenced) {
  auto pool = *PagePool::Create(kLayout, 2);
  auto reservation = *pool->Reserve("a", 2);
  PageRef page = reservation.Take();
  pool.reset();
  std::memset(page.data(), 1, kLayout.page_bytes());
  PageRef other = reservation.Take();
  std::memset(other.data(), 1, kLayout.page_bytes());
}

// The model is two integers; every operation is checked against it.
TEST(PagePool, AccountingHoldsUnderRandomOperations) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 rng(seed);
    auto pool = *PagePool::Create(kLayout, 50);
    std::vector<Reservation> reservations;
    std::vector<std::pair<PageRef, int>> refs;  // page, id in `holders`
    std::vector<int> holders;                   // references per page ever taken
    std::int64_t reserved = 0, held = 0;
    for (int step = 0; step < 2000; ++step) {
      const unsigned op = rng() % 6;
      if (op == 0) {
        const std::int64_t n = rng() % 20;
        auto r = pool->Reserve(rng() % 2 ? "a" : "b", n);
        EXPECT_EQ(r.ok(), reserved + held + n <= 50);
        if (r.ok()) {
          reservations.push_back(*std::move(r));
          reserved += n;
        }
      } else if (op == 1 && !reservations.empty()) {
        const std::int64_t n = rng() % 10;
        const bool fits = reserved + held + n <= 50;
        EXPECT_EQ(reservations[rng() % reservations.size()].Grow(n).ok(), fits);
        if (fits) reserved += n;
      } else if (op == 2 && !reservations.empty()) {
        Reservation& r = reservations[rng() % reservations.size()];
        if (r.remaining() > 0) {
          holders.push_back(1);
          refs.emplace_back(r.Take(), static_cast<int>(holders.size()) - 1);
          --reserved;
          ++held;
        }
      } else if (op == 3 && !refs.empty()) {
        const auto copy = refs[rng() % refs.size()];
        ++holders[copy.second];
        refs.push_back(copy);
      } else if (op == 4 && !refs.empty()) {
        const std::size_t i = rng() % refs.size();
        if (--holders[refs[i].second] == 0) --held;
        std::swap(refs[i], refs.back());
        refs.pop_back();
      } else if (op == 5 && !reservations.empty() && rng() % 4 == 0) {
        const std::size_t i = rng() % reservations.size();
        reserved -= reservations[i].remaining();
        std::swap(reservations[i], reservations.back());
        reservations.pop_back();
      }
      ExpectAccounts(*pool, reserved, held);
      for (const auto& [page, id] : refs) {
        ASSERT_EQ(page.use_count(), static_cast<std::uint32_t>(holders[id]));
      }
    }
  }
}

TEST(PagePool, ThreadsShareItExactly) {
  auto pool = *PagePool::Create(kLayout, 64);
  std::atomic<bool> stop{false};
  std::thread watcher([&] {
    while (!stop) {
      const auto s = pool->GetStats();
      ASSERT_EQ(s.free + s.reserved + s.held, s.total);
      ASSERT_GE(s.free, 0);
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        auto r = pool->Reserve("t", 8);
        if (!r.ok()) continue;
        std::vector<PageRef> pages;
        for (int j = 0; j < 6; ++j) {
          pages.push_back(r->Take());
          // The page is this thread's alone: a race here is a page given out twice.
          std::memset(pages.back().data(), t, 64);
        }
        std::vector<PageRef> copies = pages;
        pages.clear();
        for (const PageRef& page : copies) {
          ASSERT_EQ(static_cast<int>(page.data()[63]), t);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  stop = true;
  watcher.join();
  ExpectAccounts(*pool, 0, 0);
}

TEST(PagePool, ReclaimersAreAskedUntilTheyLeave) {
  auto pool = *PagePool::Create(kLayout, 4);
  std::int64_t a = 0, b = 0;
  bool b_has_some = true;
  auto handle_a = pool->AddReclaimer([&](std::int64_t n) {
    a += n;
    return true;
  });
  auto handle_b = pool->AddReclaimer([&](std::int64_t n) {
    b += n;
    return b_has_some;
  });
  EXPECT_EQ(pool->AskReclaim(3, handle_a.get()), 1);
  EXPECT_EQ(a, 0);
  EXPECT_EQ(b, 3);
  b_has_some = false;
  EXPECT_EQ(pool->AskReclaim(0, handle_a.get()), 0) << "asked, but with nothing to give";
  handle_b.reset();
  EXPECT_EQ(pool->AskReclaim(5, nullptr), 1);
  EXPECT_EQ(a, 5);
  EXPECT_EQ(b, 3);
}

}  // namespace
}  // namespace baton
