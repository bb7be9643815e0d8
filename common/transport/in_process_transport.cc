#include "common/transport/in_process_transport.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"

namespace baton {
namespace {

using Time = std::chrono::steady_clock::time_point;

constexpr std::string_view kScheme = "inproc:";
// A message that is to be overtaken waits so long for another one.
constexpr auto kReorderWait = std::chrono::milliseconds(5);

Time Now() { return std::chrono::steady_clock::now(); }

class Core;
class MemoryPeer;

// One transport, as the wire sees it.
struct MemoryNode {
  std::string name;
  PeerId instance = RandomId64();
  Mutex receiver_mu;  // held while the receiver looks at a header
  Receiver* receiver GUARDED_BY(receiver_mu) = nullptr;
  // Guarded by Core::mu_.
  bool paused = false;
  bool dead = false;
  TransportStats stats;
  std::map<std::string, std::shared_ptr<MemoryPeer>> peers;
  std::map<std::string, Time> backoff;
};

struct Message {
  std::shared_ptr<MemoryPeer> peer;
  std::string header;
  std::vector<ConstSpan> payload;
  uint64_t bytes = 0;
  std::shared_ptr<const void> owner;
  SendDone done;
  Time due;
  int copies = 1;      // 0: dropped, 2: duplicated
  bool flip = false;   // one bit
  absl::Status fault;  // the connection fails here
};

// Peers, queues and the one thread on which everything is delivered and completed.
class Core : public std::enable_shared_from_this<Core> {
 public:
  explicit Core(InProcessOptions options) : options_(options) {}

  void Start() {
    thread_ = std::thread([self = shared_from_this()] { self->Loop(); });
  }
  // Not to be called with transports alive: they hold the network.
  void Stop();
  bool OnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  std::shared_ptr<MemoryNode> AddNode(const std::string& name);
  void KillNode(const std::shared_ptr<MemoryNode>& node, const absl::Status& why);
  std::shared_ptr<MemoryNode> FindNode(const std::string& name) {
    MutexLock lock(mu_);
    auto it = nodes_.find(name);
    return it == nodes_.end() ? nullptr : it->second;
  }
  void SetPaused(const std::string& name, bool paused);
  void SetFaults(const InProcessFaults& faults) {
    MutexLock lock(mu_);
    faults_ = faults;
    random_.seed(faults.seed);
  }
  TransportStats Stats(const MemoryNode& node) {
    MutexLock lock(mu_);
    return node.stats;
  }
  absl::StatusOr<std::shared_ptr<Peer>> Connect(const std::shared_ptr<MemoryNode>& from,
                                                std::string_view address, uint64_t incarnation);
  // Blocks until `node` has nothing unfinished and no callback running. Not on the thread.
  void Drain(const MemoryNode& node);

 private:
  friend class MemoryPeer;
  using Queue = std::map<std::pair<Time, uint64_t>, std::unique_ptr<Message>>;

  void Loop();
  double Uniform() REQUIRES(mu_) { return std::uniform_real_distribution<double>()(random_); }
  void Submit(std::unique_ptr<Message> message) REQUIRES(mu_);
  void Enqueue(std::unique_ptr<Message> message) REQUIRES(mu_);
  void PutOnWire(std::unique_ptr<Message> message) REQUIRES(mu_);
  void Fail(MemoryPeer& peer, const absl::Status& why, bool reported) REQUIRES(mu_);
  void CheckDeadlines(Time now) REQUIRES(mu_);
  std::unique_ptr<Message> Take(Time now) REQUIRES(mu_);
  bool Idle(const MemoryNode& node) REQUIRES(mu_);
  void Process(std::unique_ptr<Message> message);
  void Deliver(Message& message);
  void Complete(std::unique_ptr<Message> message, absl::Status status);

  const InProcessOptions options_;
  std::thread thread_;

  Mutex mu_;
  CondVar cv_;
  bool stopping_ GUARDED_BY(mu_) = false;
  bool busy_ GUARDED_BY(mu_) = false;  // the thread is in a callback
  std::map<std::string, std::shared_ptr<MemoryNode>> nodes_ GUARDED_BY(mu_);
  InProcessFaults faults_ GUARDED_BY(mu_);
  std::mt19937_64 random_ GUARDED_BY(mu_);
  uint64_t sequence_ GUARDED_BY(mu_) = 0;
  Queue wire_ GUARDED_BY(mu_);
  std::unique_ptr<Message> held_ GUARDED_BY(mu_);  // to be overtaken
};

class MemoryPeer final : public Peer, public std::enable_shared_from_this<MemoryPeer> {
 public:
  MemoryPeer(std::shared_ptr<Core> core, std::shared_ptr<MemoryNode> from,
             std::shared_ptr<MemoryNode> to, uint64_t incarnation)
      : core_(std::move(core)),
        from_(std::move(from)),
        to_(std::move(to)),
        incarnation_(incarnation) {}

  void Send(std::string header, std::vector<ConstSpan> payload, std::shared_ptr<const void> owner,
            SendDone done) override;
  std::string lane() const override { return "in_process"; }
  bool failed() const override { return !status().ok(); }
  absl::Status status() const override {
    MutexLock lock(core_->mu_);
    return status_;
  }
  void Close(absl::Status why) override {
    MutexLock lock(core_->mu_);
    core_->Fail(*this, why.ok() ? absl::UnavailableError("closed") : why, /*reported=*/false);
  }

 private:
  friend class Core;

  const std::shared_ptr<Core> core_;
  const std::shared_ptr<MemoryNode> from_, to_;
  const uint64_t incarnation_;
  // Guarded by Core::mu_.
  absl::Status status_;
  std::deque<std::unique_ptr<Message>> waiting_;  // for the window
  int in_flight_ = 0;
  Time progress_ = Now();
};

void MemoryPeer::Send(std::string header, std::vector<ConstSpan> payload,
                      std::shared_ptr<const void> owner, SendDone done) {
  auto message = std::make_unique<Message>();
  message->peer = shared_from_this();
  for (const ConstSpan span : payload) message->bytes += span.size();
  absl::Status refused;
  if (header.size() > kMaxTransportHeaderBytes) {
    refused = absl::InvalidArgumentError(absl::StrCat(
        "header of ", header.size(), " bytes; the limit is ", kMaxTransportHeaderBytes));
  } else if (message->bytes > core_->options_.max_payload_bytes) {
    refused = absl::InvalidArgumentError(absl::StrCat(
        "payload of ", message->bytes, " bytes; the limit is ", core_->options_.max_payload_bytes));
  }
  message->header = std::move(header);
  message->payload = std::move(payload);
  message->owner = std::move(owner);
  message->done = std::move(done);
  {
    MutexLock lock(core_->mu_);
    if (refused.ok()) refused = status_;
    if (refused.ok()) return core_->Submit(std::move(message));
    ++from_->stats.send_failures;
  }
  if (message->done) message->done(refused);
}

void Core::Submit(std::unique_ptr<Message> message) {
  MemoryPeer& peer = *message->peer;
  if (peer.in_flight_ >= options_.window) {
    ++peer.from_->stats.sends_queued;
    peer.waiting_.push_back(std::move(message));
    return;
  }
  if (peer.in_flight_ == 0) peer.progress_ = Now();
  ++peer.in_flight_;
  ++peer.from_->stats.sends_in_flight;
  Enqueue(std::move(message));
}

// Rolls the dice. Every message takes the same number of throws, so that one fault's probability
// does not change what the others hit.
void Core::Enqueue(std::unique_ptr<Message> message) {
  const bool drop = Uniform() < faults_.drop;
  const bool twice = Uniform() < faults_.duplicate;
  const bool later = Uniform() < faults_.reorder;
  message->flip = Uniform() < faults_.corrupt;
  message->copies = drop ? 0 : twice ? 2 : 1;
  message->due = Now() + absl::ToChronoNanoseconds(faults_.delay);
  if (faults_.fail_after) {
    if (*faults_.fail_after == 0) {
      message->fault = absl::UnavailableError("the connection failed (injected)");
      faults_.fail_after.reset();
    } else {
      --*faults_.fail_after;
    }
  }
  if (later && held_ == nullptr) {
    held_ = std::move(message);
    held_->due += kReorderWait;
  } else {
    const Time due = message->due;
    PutOnWire(std::move(message));
    if (held_ != nullptr) {
      held_->due = due;
      PutOnWire(std::move(held_));
    }
  }
  cv_.NotifyAll();
}

void Core::PutOnWire(std::unique_ptr<Message> message) {
  const std::pair<Time, uint64_t> key(message->due, ++sequence_);
  wire_.emplace(key, std::move(message));
}

// What is on the wire is completed by the thread, which looks at the peer's status.
void Core::Fail(MemoryPeer& peer, const absl::Status& why, bool reported) {
  if (!peer.status_.ok()) return;
  peer.status_ = why;
  MemoryNode& from = *peer.from_;
  for (auto& message : peer.waiting_) {
    --from.stats.sends_queued;
    ++from.stats.sends_in_flight;
    ++peer.in_flight_;
    message->due = Now();
    PutOnWire(std::move(message));
  }
  peer.waiting_.clear();
  if (auto it = from.peers.find(peer.to_->name);
      it != from.peers.end() && it->second.get() == &peer) {
    from.peers.erase(it);
  }
  from.stats.peers = from.peers.size();
  if (reported) {
    ++from.stats.connection_failures;
    from.backoff[peer.to_->name] = Now() + absl::ToChronoNanoseconds(options_.reconnect_backoff);
  }
  cv_.NotifyAll();
}

void Core::CheckDeadlines(Time now) {
  const auto deadline = absl::ToChronoNanoseconds(options_.progress_deadline);
  std::vector<std::shared_ptr<MemoryPeer>> stuck;
  for (auto& [key, message] : wire_) {
    MemoryPeer& peer = *message->peer;
    if ((peer.to_->paused || peer.from_->paused) && now - peer.progress_ > deadline) {
      stuck.push_back(message->peer);
    }
  }
  for (const auto& peer : stuck) {
    Fail(*peer,
         absl::DeadlineExceededError(absl::StrCat(
             "the peer made no progress for ", absl::FormatDuration(options_.progress_deadline))),
         /*reported=*/true);
  }
}

// The first message that may be delivered or must be failed; null: none now.
std::unique_ptr<Message> Core::Take(Time now) {
  if (held_ != nullptr && (held_->due <= now || stopping_)) PutOnWire(std::move(held_));
  CheckDeadlines(now);
  for (auto it = wire_.begin(); it != wire_.end(); ++it) {
    MemoryPeer& peer = *it->second->peer;
    const bool failed = !peer.status_.ok();
    if (!failed && it->first.first > now) continue;
    if (!failed && (peer.to_->paused || peer.from_->paused)) continue;
    std::unique_ptr<Message> message = std::move(it->second);
    wire_.erase(it);
    return message;
  }
  return nullptr;
}

void Core::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    cv_.NotifyAll();
  }
  // The last reference may have been dropped by a callback.
  OnThread() ? thread_.detach() : thread_.join();
}

void Core::Loop() {
  while (true) {
    std::unique_ptr<Message> message;
    {
      MutexLock lock(mu_);
      busy_ = false;
      cv_.NotifyAll();
      cv_.WaitFor(mu_, std::chrono::milliseconds(wire_.empty() && !held_ ? 1000 : 1),
                  [&]() REQUIRES(mu_) {
                    message = Take(Now());
                    return message != nullptr || stopping_;
                  });
      if (message == nullptr && stopping_ && wire_.empty()) return;
      busy_ = message != nullptr;
    }
    if (message != nullptr) Process(std::move(message));
  }
}

void Core::Process(std::unique_ptr<Message> message) {
  absl::Status status;
  {
    MutexLock lock(mu_);
    if (!message->fault.ok()) Fail(*message->peer, message->fault, /*reported=*/true);
    status = message->peer->status_;
  }
  if (status.ok()) {
    for (int i = 0; i < message->copies; ++i) Deliver(*message);
  }
  Complete(std::move(message), std::move(status));
}

void Core::Deliver(Message& message) {
  MemoryNode& node = *message.peer->to_;
  std::string header = message.header;
  if (message.flip && message.bytes == 0 && !header.empty()) header[header.size() / 2] ^= 1;
  absl::StatusOr<std::shared_ptr<Landing>> landing = absl::UnavailableError("no receiver");
  {
    MutexLock lock(node.receiver_mu);
    if (node.receiver != nullptr) {
      landing = node.receiver->OnHeader(header, message.bytes, message.peer->from_->instance);
    }
  }
  uint8_t* to = landing.ok() && *landing != nullptr ? (*landing)->data() : nullptr;
  if (!landing.ok() || *landing == nullptr || (to == nullptr && message.bytes > 0)) {
    if (landing.ok() && *landing != nullptr) {
      (*landing)->OnComplete(absl::InternalError("a landing without memory"));
    }
    MutexLock lock(mu_);
    ++node.stats.messages_refused;
    return;
  }
  uint8_t* at = to;
  for (const ConstSpan span : message.payload) {
    if (!span.empty()) std::memcpy(at, span.data(), span.size());
    at += span.size();
  }
  if (message.flip && message.bytes > 0) to[message.bytes / 2] ^= 1;
  {
    MutexLock lock(mu_);
    ++node.stats.messages_received;
    node.stats.bytes_received += message.bytes;
  }
  (*landing)->OnComplete(absl::OkStatus());
}

void Core::Complete(std::unique_ptr<Message> message, absl::Status status) {
  const std::shared_ptr<MemoryPeer> peer = message->peer;
  {
    MutexLock lock(mu_);
    TransportStats& stats = peer->from_->stats;
    if (status.ok()) {
      ++stats.messages_sent;
      stats.bytes_sent += message->bytes;
    } else {
      ++stats.send_failures;
    }
    peer->progress_ = Now();
    --stats.sends_in_flight;
    --peer->in_flight_;
    if (!peer->waiting_.empty() && peer->status_.ok()) {
      std::unique_ptr<Message> next = std::move(peer->waiting_.front());
      peer->waiting_.pop_front();
      --stats.sends_queued;
      Submit(std::move(next));
    }
  }
  if (message->done) message->done(std::move(status));
  message.reset();
}

std::shared_ptr<MemoryNode> Core::AddNode(const std::string& name) {
  auto node = std::make_shared<MemoryNode>();
  node->name = name;
  if (auto old = FindNode(name)) KillNode(old, absl::UnavailableError("the peer restarted"));
  MutexLock lock(mu_);
  nodes_[name] = node;
  return node;
}

void Core::KillNode(const std::shared_ptr<MemoryNode>& node, const absl::Status& why) {
  {
    MutexLock lock(node->receiver_mu);
    node->receiver = nullptr;
  }
  MutexLock lock(mu_);
  node->dead = true;
  if (auto it = nodes_.find(node->name); it != nodes_.end() && it->second == node) {
    nodes_.erase(it);
  }
  std::vector<std::shared_ptr<MemoryPeer>> peers;
  for (auto& [name, peer] : node->peers) peers.push_back(peer);
  for (auto& [name, other] : nodes_) {
    for (auto& [to, peer] : other->peers) {
      if (peer->to_ == node) peers.push_back(peer);
    }
  }
  for (const auto& peer : peers) Fail(*peer, why, /*reported=*/peer->to_ == node);
}

void Core::SetPaused(const std::string& name, bool paused) {
  MutexLock lock(mu_);
  if (auto it = nodes_.find(name); it != nodes_.end()) it->second->paused = paused;
  cv_.NotifyAll();
}

absl::StatusOr<std::shared_ptr<Peer>> Core::Connect(const std::shared_ptr<MemoryNode>& from,
                                                    std::string_view address,
                                                    uint64_t incarnation) {
  if (!address.starts_with(kScheme)) {
    return absl::InvalidArgumentError("not the address of an in-process transport");
  }
  const std::string name(address.substr(kScheme.size()));
  MutexLock lock(mu_);
  if (stopping_ || from->dead) return absl::UnavailableError("the transport is shutting down");
  if (auto it = from->peers.find(name); it != from->peers.end()) {
    std::shared_ptr<MemoryPeer> peer = it->second;
    if (peer->incarnation_ == incarnation) return std::shared_ptr<Peer>(peer);
    Fail(*peer, absl::UnavailableError("the peer restarted"), /*reported=*/false);
  } else if (auto b = from->backoff.find(name); b != from->backoff.end() && b->second > Now()) {
    return absl::UnavailableError("the last connection there failed; back-off");
  }
  auto to = nodes_.find(name);
  std::shared_ptr<MemoryNode> node =
      to != nodes_.end() ? to->second : std::make_shared<MemoryNode>();
  node->name = name;
  auto peer = std::make_shared<MemoryPeer>(shared_from_this(), from, node, incarnation);
  from->peers[name] = peer;
  from->stats.peers = from->peers.size();
  ++from->stats.connects;
  // Nobody there: as with a real network, that shows at the first Send.
  if (to == nodes_.end()) {
    Fail(*peer, absl::UnavailableError("nobody listens there"), /*reported=*/true);
  }
  return std::shared_ptr<Peer>(peer);
}

bool Core::Idle(const MemoryNode& node) {
  return !busy_ && node.stats.sends_in_flight == 0 && node.stats.sends_queued == 0;
}

void Core::Drain(const MemoryNode& node) {
  if (OnThread()) return;
  MutexLock lock(mu_);
  cv_.Wait(mu_, [&]() REQUIRES(mu_) { return Idle(node); });
}

class MemoryTransport final : public Transport {
 public:
  MemoryTransport(std::shared_ptr<InProcessNetwork> network, std::shared_ptr<Core> core,
                  std::shared_ptr<MemoryNode> node)
      : network_(std::move(network)), core_(std::move(core)), node_(std::move(node)) {}
  ~MemoryTransport() override {
    core_->KillNode(node_, absl::UnavailableError("the transport is shutting down"));
    core_->Drain(*node_);
  }
  std::string address() const override { return std::string(kScheme) + node_->name; }
  std::string version() const override { return "in_process 1"; }
  PeerId instance_id() const override { return node_->instance; }
  absl::StatusOr<std::shared_ptr<Peer>> Connect(std::string_view address,
                                                uint64_t incarnation) override {
    return core_->Connect(node_, address, incarnation);
  }
  void SetReceiver(Receiver* receiver) override {
    MutexLock lock(node_->receiver_mu);
    node_->receiver = receiver;
  }
  TransportStats stats() const override { return core_->Stats(*node_); }

 private:
  const std::shared_ptr<InProcessNetwork> network_;  // its thread lives as long as we do
  const std::shared_ptr<Core> core_;
  const std::shared_ptr<MemoryNode> node_;
};

class Network final : public InProcessNetwork, public std::enable_shared_from_this<Network> {
 public:
  explicit Network(InProcessOptions options) : core_(std::make_shared<Core>(options)) {
    core_->Start();
  }
  ~Network() override { core_->Stop(); }

  std::shared_ptr<Transport> Add(const std::string& name) override {
    return std::make_shared<MemoryTransport>(shared_from_this(), core_, core_->AddNode(name));
  }
  void SetFaults(const InProcessFaults& faults) override { core_->SetFaults(faults); }
  void Kill(const std::string& name) override {
    if (auto node = core_->FindNode(name)) {
      core_->KillNode(node, absl::UnavailableError("the peer died"));
    }
  }
  void Pause(const std::string& name) override { core_->SetPaused(name, true); }
  void Resume(const std::string& name) override { core_->SetPaused(name, false); }

 private:
  const std::shared_ptr<Core> core_;
};

}  // namespace

std::shared_ptr<InProcessNetwork> InProcessNetwork::Create(InProcessOptions options) {
  return std::make_shared<Network>(options);
}

}  // namespace baton
