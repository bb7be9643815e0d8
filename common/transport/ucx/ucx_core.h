// The progress thread of the UCX transport and everything it owns. Private to this room.
//
// Thread rule: UCX is touched by the progress thread alone, creation and destruction included.
// Other threads reach it through Submit. Callbacks of UCX only note what happened; endpoints are
// made and closed, and queues pumped, between calls to ucp_worker_progress.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/transport/transport.h"
#include "common/transport/ucx/ucx_peer.h"
#include "common/transport/ucx/ucx_transport.h"
#include "common/transport/ucx/ucx_util.h"

namespace baton::ucx {

// The one active-message id in use.
inline constexpr unsigned kActiveMessageId = 1;

class Core : public std::enable_shared_from_this<Core> {
 public:
  explicit Core(const UcxOptions& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Starts the thread and waits until UCX is up or has failed. Once, before anything else.
  absl::Status Start();
  // Ends it: every message and landing is completed on return. Once, not on the progress thread.
  void Stop();

  absl::StatusOr<std::shared_ptr<Peer>> Connect(std::string_view address, uint64_t incarnation);
  void SetReceiver(Receiver* receiver);
  TransportStats stats() const;
  // Without shared memory's part once a peer was lost there (LeaveSharedMemory).
  const std::string& address() const { return network_only_.load() ? network_address_ : address_; }
  PeerId instance_id() const { return instance_; }
  const UcxOptions& options() const { return options_; }

  // Runs `task` on the progress thread; after Stop, on the calling thread (all peers have failed
  // then, and tasks look).
  void Submit(absl::AnyInvocable<void()> task);
  // Sends, or queues, or fails the message. Progress thread.
  void SubmitSend(std::unique_ptr<SendOp> op);
  // Fails the peer if it has not failed yet, and tears it down. Progress thread.
  // `reported`: the network's doing, which counts as a failure and starts the back-off.
  void FailPeer(const std::shared_ptr<UcxPeer>& peer, const absl::Status& why, bool reported);

 private:
  struct Counters {
    std::atomic<uint64_t> messages_sent{0}, bytes_sent{0}, send_failures{0}, messages_received{0},
        bytes_received{0}, receive_failures{0}, messages_refused{0}, connects{0},
        connection_failures{0}, sends_in_flight{0}, sends_queued{0}, landings{0}, landing_bytes{0},
        peers{0};
  };
  // A failed peer whose endpoint is still open. A healthy one is closed when what is under way has
  // ended: 1.13 may crash in its TCP code when an endpoint is torn away from a peer that sends on.
  struct Leaving {
    std::shared_ptr<UcxPeer> peer;
    int64_t force_at_ns;
    bool drain;
  };
  struct Backoff {
    int failures = 0;
    int64_t until_ns = 0;
  };

  // ucx_core.cc: the thread, its loop and its clockwork.
  void Run(std::promise<absl::Status> started);
  absl::Status SetUp();
  void Loop();
  void Sleep(int64_t until_ns);
  bool RunTasks();
  bool RunDeferred();
  void Tick(int64_t now_ns);
  void CheckPeer(const std::shared_ptr<UcxPeer>& peer, int64_t now_ns);
  void CheckLandings(int64_t now_ns);
  void LeaveBehind(int64_t now_ns);
  // Sends that still need their memory.
  size_t HoldingSends() const { return sends_.size() - left_behind_; }
  void TearDown();
  void Abandon(const absl::Status& why);
  void Wake();
  bool OnProgressThread() const { return std::this_thread::get_id() == thread_id_; }

  // ucx_connections.cc: endpoints.
  void OpenEndpoint(const std::shared_ptr<UcxPeer>& peer);
  void CloseEndpoint(const std::shared_ptr<UcxPeer>& peer, bool force);
  void Forget(const std::shared_ptr<UcxPeer>& peer, bool reported);
  void ReapClosing(int64_t now_ns);
  bool Receiving(const std::shared_ptr<UcxPeer>& peer) const;
  void SendHello(const std::shared_ptr<UcxPeer>& peer);
  void OnHello(PeerId from, std::string_view body);
  void OnHelloAck(PeerId from, std::string_view body);
  void SendGoodbye(const std::shared_ptr<UcxPeer>& peer);
  void OnGoodbye(PeerId from);
  void NoteConnected(UcxPeer& peer);
  void LeaveSharedMemory(const UcxPeer& lost);
  static void OnEndpointError(void* arg, ucp_ep_h endpoint, ucs_status_t status);

  // ucx_messages.cc: what travels.
  void Pump(UcxPeer& peer);
  void Post(std::unique_ptr<SendOp> op);
  void Gather(SendOp& op);
  void FinishSend(SendOp* op, absl::Status status);
  void Report(SendOp& op, absl::Status status);
  void Refuse(const absl::Status& why);
  std::string MakeHeader(MessagePrefix::Kind kind, std::string_view body) const;
  ucs_status_t OnMessage(std::string_view header, void* data, size_t bytes, bool rendezvous);
  ucs_status_t OnData(std::string_view header, PeerId from, void* data, size_t bytes,
                      bool rendezvous);
  void FinishReceive(RecvOp* op, absl::Status status);
  static ucs_status_t OnActiveMessage(void* arg, const void* header, size_t header_bytes,
                                      void* data, size_t bytes, const ucp_am_recv_param_t* param);
  static void OnSent(void* request, ucs_status_t status, void* user_data);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* user_data);

  friend class UcxPeer;  // counts

  // Constant after Start.
  const UcxOptions options_;
  const PeerId instance_;
  std::string address_;          // wrapped
  std::string network_address_;  // the same without shared memory; empty: there is no network lane
  int wake_fd_ = -1;
  int epoll_fd_ = -1;
  std::thread thread_;
  std::thread::id thread_id_;

  Counters counters_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> has_tasks_{false};
  std::atomic<bool> network_only_{false};

  Mutex tasks_mu_;
  std::vector<absl::AnyInvocable<void()>> tasks_ GUARDED_BY(tasks_mu_);
  bool accepting_ GUARDED_BY(tasks_mu_) = false;

  Mutex receiver_mu_;  // held while the receiver looks at a header
  Receiver* receiver_ GUARDED_BY(receiver_mu_) = nullptr;

  Mutex peers_mu_;
  bool closed_ GUARDED_BY(peers_mu_) = false;
  std::map<std::string, std::shared_ptr<UcxPeer>> by_address_ GUARDED_BY(peers_mu_);
  std::map<std::string, Backoff> backoff_ GUARDED_BY(peers_mu_);

  // Progress thread only. Order matters: worker_ before context_ on the way down.
  Context context_;
  Worker worker_;
  std::set<std::shared_ptr<UcxPeer>> peers_;  // those with an endpoint
  std::unordered_map<PeerId, std::weak_ptr<UcxPeer>> by_instance_;
  std::unordered_map<SendOp*, std::unique_ptr<SendOp>> sends_;
  size_t left_behind_ = 0;              // of sends_
  std::vector<Staging> spare_staging_;  // at most a window of them; fresh memory costs page faults
  std::unordered_map<RecvOp*, std::unique_ptr<RecvOp>> receives_;
  std::vector<std::pair<ucs_status_ptr_t, std::shared_ptr<UcxPeer>>> closing_;
  std::vector<Leaving> leaving_;
  std::deque<absl::AnyInvocable<void()>> deferred_;  // noted in callbacks, run between progress
};

// Steady time in nanoseconds.
int64_t NowNs();

}  // namespace baton::ucx
