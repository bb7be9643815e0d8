#include "common/node/ticker.h"

#include <utility>

namespace baton {

Ticker::Ticker(std::chrono::milliseconds interval, std::function<void()> tick)
    : interval_(interval), tick_(std::move(tick)), thread_([this] {
        for (;;) {
          {
            MutexLock lock(mu_);
            if (changed_.WaitFor(mu_, interval_, [this]() REQUIRES(mu_) { return stop_; })) return;
          }
          tick_();
        }
      }) {}

Ticker::~Ticker() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

}  // namespace baton
