#include "common/transport/ucx/ucx_core.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"

namespace baton::ucx {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
// When we stop: time for messages under way to end by themselves, then for closed connections to
// send what UCX still buffers, and, since the start, for messages to end after that.
constexpr int64_t kDrainNs = 1000 * kMillisecond;
constexpr int64_t kFlushNs = 300 * kMillisecond;
constexpr int64_t kQuarantineNs = 2500 * kMillisecond;
// Requests to a dead process that UCX has not finished by then will never be: nobody is left to ask
// for their payload, and its endpoint is closed.
constexpr int64_t kDeadAfterNs = 3000 * kMillisecond;

}  // namespace

int64_t NowNs() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

Core::Core(const UcxOptions& options) : options_(options), instance_(RandomId64()) {}

Core::~Core() {
  if (epoll_fd_ >= 0) close(epoll_fd_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

absl::Status Core::Start() {
  std::promise<absl::Status> started;
  std::future<absl::Status> result = started.get_future();
  thread_ =
      std::thread([this, started = std::move(started)]() mutable { Run(std::move(started)); });
  absl::Status status = result.get();
  if (!status.ok()) thread_.join();
  return status;
}

void Core::Stop() {
  stopping_.store(true, std::memory_order_release);
  Wake();
  if (thread_.joinable()) thread_.join();
}

void Core::Submit(absl::AnyInvocable<void()> task) {
  bool wake = false;
  {
    MutexLock lock(tasks_mu_);
    if (accepting_) {
      tasks_.push_back(std::move(task));
      task = nullptr;
      wake = !has_tasks_.exchange(true, std::memory_order_acq_rel);
    }
  }
  if (task) return task();
  if (wake) Wake();
}

void Core::Wake() {
  const uint64_t one = 1;
  // Can only fail when the counter is full, and then the thread wakes anyway.
  [[maybe_unused]] const ssize_t n = write(wake_fd_, &one, sizeof(one));
}

void Core::Run(std::promise<absl::Status> started) {
  thread_id_ = std::this_thread::get_id();
  pthread_setname_np(pthread_self(), "baton-ucx");
  absl::Status status = SetUp();
  if (!status.ok()) {
    worker_.reset();
    context_.reset();
    started.set_value(std::move(status));
    return;
  }
  started.set_value(absl::OkStatus());
  Loop();
  TearDown();
}

absl::Status Core::SetUp() {
  BATON_ASSIGN_OR_RETURN(context_, CreateContext(options_));
  BATON_ASSIGN_OR_RETURN(
      worker_, CreateWorker(context_.get(), sizeof(MessagePrefix) + kMaxTransportHeaderBytes));
  BATON_ASSIGN_OR_RETURN(std::string raw, WorkerAddress(worker_.get(), /*network_only=*/false));
  address_ = WrapAddress(raw);
  if (std::any_of(options_.tls.begin(), options_.tls.end(), UsesNetwork)) {
    BATON_ASSIGN_OR_RETURN(raw, WorkerAddress(worker_.get(), /*network_only=*/true));
    network_address_ = WrapAddress(raw);
  }

  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kActiveMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &Core::OnActiveMessage;
  handler.arg = this;
  if (ucs_status_t s = ucp_worker_set_am_recv_handler(worker_.get(), &handler); s != UCS_OK) {
    return FromUcs(s, "ucp_worker_set_am_recv_handler");
  }
  int worker_fd = -1;
  if (ucs_status_t s = ucp_worker_get_efd(worker_.get(), &worker_fd); s != UCS_OK) {
    return FromUcs(s, "the chosen UCX transports can't wake a sleeping thread");
  }
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  for (int fd : {worker_fd, wake_fd_}) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (wake_fd_ < 0 || epoll_fd_ < 0 || epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("can't set up the progress thread: ", std::strerror(errno)));
    }
  }
  MutexLock lock(tasks_mu_);
  accepting_ = true;
  return absl::OkStatus();
}

void Core::Loop() {
  const int64_t spin_ns = absl::ToInt64Nanoseconds(options_.spin);
  const int64_t tick_ns = std::clamp<int64_t>(
      absl::ToInt64Nanoseconds(std::min(options_.heartbeat, options_.progress_deadline)) / 4,
      5 * kMillisecond, 100 * kMillisecond);
  int64_t busy_ns = NowNs();
  int64_t next_tick_ns = busy_ns;
  while (!stopping_.load(std::memory_order_acquire)) {
    bool worked = false;
    // Bounded, so that a flood of messages starves neither submissions nor deadlines.
    for (int i = 0; i < 64 && ucp_worker_progress(worker_.get()) != 0; ++i) worked = true;
    worked |= RunDeferred();
    worked |= RunTasks();
    const int64_t now = NowNs();
    if (now >= next_tick_ns) {
      Tick(now);
      next_tick_ns = now + tick_ns;
    }
    if (worked) busy_ns = now;
    if (now - busy_ns < spin_ns || !deferred_.empty()) continue;
    const bool idle = peers_.empty() && receives_.empty() && closing_.empty() && leaving_.empty();
    Sleep(idle ? now + 1000 * kMillisecond : next_tick_ns);
  }
}

void Core::Sleep(int64_t until_ns) {
  // UCX refuses to arm while events are pending.
  if (ucp_worker_arm(worker_.get()) != UCS_OK) return;
  const int64_t wait_ms = std::max<int64_t>(1, (until_ns - NowNs()) / kMillisecond);
  epoll_event events[2];
  const int n = epoll_wait(epoll_fd_, events, 2, static_cast<int>(wait_ms));
  for (int i = 0; i < n; ++i) {
    uint64_t count;
    if (events[i].data.fd == wake_fd_) {
      [[maybe_unused]] const ssize_t r = read(wake_fd_, &count, sizeof(count));
    }
  }
}

bool Core::RunTasks() {
  if (!has_tasks_.load(std::memory_order_acquire)) return false;
  std::vector<absl::AnyInvocable<void()>> tasks;
  {
    MutexLock lock(tasks_mu_);
    tasks.swap(tasks_);
    has_tasks_.store(false, std::memory_order_release);
  }
  for (auto& task : tasks) task();
  return !tasks.empty();
}

bool Core::RunDeferred() {
  const bool any = !deferred_.empty();
  while (!deferred_.empty()) {
    auto task = std::move(deferred_.front());
    deferred_.pop_front();
    task();
  }
  return any;
}

void Core::Tick(int64_t now_ns) {
  ReapClosing(now_ns);
  CheckLandings(now_ns);
  LeaveBehind(now_ns);
  const std::vector<std::shared_ptr<UcxPeer>> peers(peers_.begin(), peers_.end());
  for (const auto& peer : peers) CheckPeer(peer, now_ns);
  for (auto it = by_instance_.begin(); it != by_instance_.end();) {
    it = it->second.expired() ? by_instance_.erase(it) : std::next(it);
  }
  const int64_t keep_ns = 10 * absl::ToInt64Nanoseconds(options_.backoff_max);
  MutexLock lock(peers_mu_);
  for (auto it = backoff_.begin(); it != backoff_.end();) {
    it = now_ns > it->second.until_ns + keep_ns ? backoff_.erase(it) : std::next(it);
  }
}

void Core::CheckPeer(const std::shared_ptr<UcxPeer>& peer, int64_t now_ns) {
  const int64_t deadline_ns = absl::ToInt64Nanoseconds(options_.progress_deadline);
  const int64_t heartbeat_ns = absl::ToInt64Nanoseconds(options_.heartbeat);
  if (!peer->in_flight_.empty()) {
    int64_t oldest = now_ns;
    for (const SendOp* op : peer->in_flight_) oldest = std::min(oldest, op->submitted_ns);
    const int64_t since = std::max(oldest, peer->last_send_progress_ns_);
    if (now_ns - since > deadline_ns) {
      return FailPeer(
          peer,
          absl::DeadlineExceededError(absl::StrCat(
              "the peer made no progress for ", absl::FormatDuration(options_.progress_deadline))),
          /*reported=*/true);
    }
  }
  if (!peer->outgoing_) {
    // Nobody here waits for it. It speaks up at every heartbeat of its own if it is still there.
    const int64_t idle_ns =
        std::max<int64_t>(30'000 * kMillisecond, 4 * heartbeat_ns + deadline_ns);
    if (now_ns - peer->last_heard_ns_ > idle_ns) {
      FailPeer(peer, absl::UnavailableError("the peer fell silent"), /*reported=*/false);
    }
    return;
  }
  if (peer->ping_sent_ns_ != 0) {
    if (now_ns - peer->ping_sent_ns_ > deadline_ns) {
      FailPeer(peer,
               absl::DeadlineExceededError(
                   absl::StrCat("the peer gave no sign of life for ",
                                absl::FormatDuration(options_.progress_deadline))),
               /*reported=*/true);
    }
  } else if (now_ns - peer->last_heard_ns_ > heartbeat_ns) {
    SendHello(peer);
  }
}

void Core::CheckLandings(int64_t now_ns) {
  const int64_t deadline_ns = absl::ToInt64Nanoseconds(options_.progress_deadline);
  std::vector<std::shared_ptr<UcxPeer>> stuck;
  for (auto& [op, unused] : receives_) {
    if (op->peer == nullptr) {
      if (auto it = by_instance_.find(op->from); it != by_instance_.end()) {
        op->peer = it->second.lock();
      }
    }
    if (op->peer == nullptr || op->peer->torn_down_) continue;
    const int64_t since = std::max(op->started_ns, op->peer->last_receive_progress_ns_);
    if (now_ns - since > deadline_ns) stuck.push_back(op->peer);
  }
  for (const auto& peer : stuck) {
    FailPeer(
        peer,
        absl::DeadlineExceededError(absl::StrCat("the sender made no progress for ",
                                                 absl::FormatDuration(options_.progress_deadline))),
        /*reported=*/true);
  }
}

// UCX 1.13 sometimes never finishes requests to a shared-memory peer that was killed. The request
// stays; the memory it would have read is given back.
void Core::LeaveBehind(int64_t now_ns) {
  std::vector<std::shared_ptr<const void>> released;  // may call back into this transport
  for (auto& [op, unused] : sends_) {
    const UcxPeer& peer = *op->peer;
    if (op->left_behind || !peer.torn_down_ || peer.endpoint_ != nullptr) continue;
    // A greeting reads nothing but the operation itself, which stays.
    if (now_ns - peer.down_ns_ < kDeadAfterNs || (!peer.died_ && op->message)) continue;
    op->left_behind = true;
    ++left_behind_;
    released.push_back(std::move(op->owner));
  }
  if (released.empty()) return;
  counters_.sends_in_flight.store(HoldingSends(), std::memory_order_relaxed);
  BATON_LOG_WARN("transport: UCX never finished {} sends to a peer that died; their memory is free",
                 released.size());
}

void Core::Abandon(const absl::Status& why) {
  for (auto& [op, owned] : sends_) {
    Report(*op, why);
    (void)owned.release();  // NOLINT(bugprone-unused-return-value): left alone on purpose
  }
  sends_.clear();
  for (auto& [op, owned] : receives_) {
    op->landing->OnComplete(why);
    (void)owned.release();  // NOLINT(bugprone-unused-return-value)
  }
  receives_.clear();
  counters_.receive_failures.fetch_add(counters_.landings.exchange(0));
  counters_.landing_bytes.store(0);
  (void)worker_.release();   // NOLINT(bugprone-unused-return-value)
  (void)context_.release();  // NOLINT(bugprone-unused-return-value)
}

void Core::TearDown() {
  const absl::Status why = absl::UnavailableError("the transport is shutting down");
  SetReceiver(nullptr);
  // First no live peers, then no more tasks: a task that comes too late finds its peer failed.
  {
    MutexLock lock(peers_mu_);
    closed_ = true;
    for (auto& [address, peer] : by_address_) peer->MarkFailed(why);
  }
  {
    MutexLock lock(tasks_mu_);
    accepting_ = false;
  }
  RunTasks();
  RunDeferred();
  const std::vector<std::shared_ptr<UcxPeer>> peers(peers_.begin(), peers_.end());
  for (const auto& peer : peers) {
    SendGoodbye(peer);
    FailPeer(peer, why, /*reported=*/false);
  }
  const int64_t start = NowNs();
  const auto unfinished = [this] { return HoldingSends() > 0 || !receives_.empty(); };
  // Peers that work end what is under way; the rest is forced.
  const auto run_until = [&](int64_t limit_ns, bool force, auto more) {
    while (more() && NowNs() - start < limit_ns) {
      if (ucp_worker_progress(worker_.get()) == 0) std::this_thread::yield();
      RunDeferred();
      ReapClosing(force ? std::numeric_limits<int64_t>::max() : NowNs());
    }
  };
  run_until(kDrainNs, false, [&] { return unfinished() || !leaving_.empty(); });
  // However late it is: no endpoint outlives its worker.
  ReapClosing(std::numeric_limits<int64_t>::max());
  run_until(kDrainNs + kFlushNs, true, [&] { return !leaving_.empty() || !closing_.empty(); });
  run_until(kQuarantineNs, true, unfinished);
  if (unfinished()) {
    BATON_LOG_WARN("transport: {} sends and {} landings never ended; their memory is left alone",
                   HoldingSends(), receives_.size());
  }
  // A hung or dead shared-memory peer. UCX asserts when a worker dies with such requests, so the
  // worker stays, and with it the memory it may touch; no more progress is made.
  if (!sends_.empty() || !receives_.empty()) Abandon(why);
  worker_.reset();
  context_.reset();
  closing_.clear();
  deferred_.clear();
  peers_.clear();
  MutexLock lock(peers_mu_);
  by_address_.clear();
}

}  // namespace baton::ucx
