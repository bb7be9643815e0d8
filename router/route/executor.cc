#include "router/route/executor.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <utility>

#include "common/base/mutex.h"

namespace baton {
namespace {

class AsioTimer final : public RouterExecutor::Timer,
                        public std::enable_shared_from_this<AsioTimer> {
 public:
  explicit AsioTimer(boost::asio::thread_pool& pool) : timer_(pool) {}

  void Start(std::chrono::nanoseconds delay, std::function<void(bool)> task) {
    MutexLock lock(mu_);  // asio's timers are not thread-safe
    timer_.expires_after(delay);
    timer_.async_wait([self = shared_from_this(), task = std::move(task)](
                          const boost::system::error_code& error) { task(bool(error)); });
  }
  void Cancel() override {
    MutexLock lock(mu_);
    timer_.cancel();
  }

 private:
  Mutex mu_;
  boost::asio::steady_timer timer_ GUARDED_BY(mu_);
};

}  // namespace

class RouterExecutor::Impl {
 public:
  explicit Impl(int threads) : pool(static_cast<size_t>(threads)) {}
  boost::asio::thread_pool pool;
};

RouterExecutor::RouterExecutor(int threads)
    : impl_(std::make_unique<Impl>(threads < 1 ? 1 : threads)) {}

RouterExecutor::~RouterExecutor() {
  impl_->pool.stop();
  impl_->pool.join();
}

void RouterExecutor::Post(std::function<void()> task) {
  boost::asio::post(impl_->pool, std::move(task));
}

std::shared_ptr<RouterExecutor::Timer> RouterExecutor::After(
    std::chrono::nanoseconds delay, std::function<void(bool cancelled)> task) {
  auto timer = std::make_shared<AsioTimer>(impl_->pool);
  timer->Start(delay, std::move(task));
  return timer;
}

}  // namespace baton
