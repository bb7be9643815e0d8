#include "decode_node/serve/producer_links.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/node/space_proto.h"
#include "common/rpc/call_context.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"

namespace baton {
namespace {

using SteadyClock = std::chrono::steady_clock;
using Key = std::tuple<std::string, std::string, std::string>;  // address, base model, wants

struct Entry {
  std::shared_ptr<const ProducerLink> link;
  bool linking = false;
  std::vector<ProducerLinks::Done> waiting;
  absl::Status failure;  // valid until retry_at
  SteadyClock::time_point retry_at;
  std::chrono::milliseconds backoff{0};
  SteadyClock::time_point used;  // by the latest Get
};

struct LinkCall {
  grpc::ClientContext context;
  v1::LinkRequest request;
  v1::LinkResponse response;
};

}  // namespace

struct ProducerLinks::State : std::enable_shared_from_this<State> {
  explicit State(ProducerLinksOptions o) : options(std::move(o)) {}

  const ProducerLinksOptions options;
  Mutex mu;
  std::map<Key, Entry> entries GUARDED_BY(mu);
  std::map<std::string, std::shared_ptr<v1::Prefill::Stub>> stubs GUARDED_BY(mu);
  SteadyClock::time_point next_prune GUARDED_BY(mu) = SteadyClock::now() + options.idle;

  // Producers come and go under ever new addresses; those of the past must not pile up.
  void Prune(SteadyClock::time_point now) REQUIRES(mu) {
    if (now < next_prune) return;
    next_prune = now + options.idle;
    std::erase_if(entries, [&](const auto& item) {
      return !item.second.linking && now - item.second.used >= options.idle;
    });
    // Links and calls hold their stub; new holders come from here, under the lock.
    std::erase_if(stubs, [](const auto& item) { return item.second.use_count() == 1; });
  }

  absl::StatusOr<std::shared_ptr<v1::Prefill::Stub>> StubFor(const std::string& address) {
    MutexLock lock(mu);
    std::shared_ptr<v1::Prefill::Stub>& stub = stubs[address];
    if (!stub) {
      ChannelOptions channel_options;
      channel_options.max_message_bytes = options.max_message_bytes;
      channel_options.tls = options.tls;
      auto channel = MakeChannel(address, channel_options);
      if (!channel.ok()) {
        stubs.erase(address);
        return channel.status();
      }
      stub = v1::Prefill::NewStub(*channel);
    }
    return stub;
  }

  void Call(const Key& key, const std::string& address, const std::string& base_model,
            const Space& wants) {
    auto stub = StubFor(address);
    if (!stub.ok()) {
      Finish(key, stub.status());
      return;
    }
    auto call = std::make_shared<LinkCall>();
    *call->request.mutable_from() = options.self;
    call->request.set_base_model(base_model);
    *call->request.mutable_wants() = ToProto(wants);
    if (options.transport_address) {
      call->request.set_transport_address(options.transport_address());
    }
    call->request.set_transport_version(options.transport_version);
    SetDeadline(call->context, absl::Now() + absl::FromChrono(options.timeout));
    (*stub)->async()->Link(&call->context, &call->request, &call->response,
                           [self = shared_from_this(), call, key, address, base_model, wants,
                            stub = *stub](grpc::Status status) {
                             self->Finish(key, self->Accept(*call, address, base_model, wants, stub,
                                                            FromGrpcStatus(status)));
                           });
  }

  Result Accept(const LinkCall& call, const std::string& address, const std::string& base_model,
                const Space& wants, std::shared_ptr<v1::Prefill::Stub> stub,
                const absl::Status& status) {
    BATON_RETURN_IF_ERROR(status);
    BATON_RETURN_IF_ERROR(CheckProtocol(call.response.node()));
    auto link = std::make_shared<ProducerLink>();
    BATON_ASSIGN_OR_RETURN(link->space, FromProto(call.response.space()));
    BATON_RETURN_IF_ERROR(CompareWants(wants, link->space));
    link->address = address;
    link->base_model = base_model;
    link->stub = std::move(stub);
    link->node = call.response.node();
    link->transport_version = call.response.transport_version();
    link->meter = std::make_shared<LinkMeter>();
    BATON_LOG_INFO("linked with producer \"{}\" at {} ({}, transport {}) for \"{}\"",
                   link->node.name(), address, link->node.version(), link->transport_version,
                   base_model);
    return std::shared_ptr<const ProducerLink>(std::move(link));
  }

  void Finish(const Key& key, Result result) {
    if (!result.ok()) {
      result = absl::Status(result.status().code(), absl::StrCat("producer ", std::get<0>(key),
                                                                 ": ", result.status().message()));
    }
    std::vector<Done> waiting;
    {
      MutexLock lock(mu);
      Entry& e = entries[key];
      e.linking = false;
      waiting.swap(e.waiting);
      if (result.ok()) {
        e.link = *result;
        e.backoff = std::chrono::milliseconds(0);
      } else {
        e.backoff = e.backoff.count() == 0 ? options.backoff_initial
                                           : std::min(options.backoff_max, e.backoff * 2);
        e.failure = result.status();
        e.retry_at = SteadyClock::now() + e.backoff;
      }
    }
    for (Done& done : waiting) done(result);
  }
};

ProducerLinks::ProducerLinks(ProducerLinksOptions options)
    : state_(std::make_shared<State>(std::move(options))) {}
ProducerLinks::~ProducerLinks() = default;

void ProducerLinks::Get(const std::string& address, const std::string& base_model,
                        const Space& wants, Done done) {
  const Key key(address, base_model, wants.Digest());
  std::optional<Result> known;
  bool call = false;
  {
    const auto now = SteadyClock::now();
    MutexLock lock(state_->mu);
    state_->Prune(now);
    Entry& e = state_->entries[key];
    e.used = now;
    if (e.link) {
      known = e.link;
    } else if (!e.linking && now < e.retry_at) {
      known = e.failure;
    } else {
      e.waiting.push_back(std::move(done));
      call = !std::exchange(e.linking, true);
    }
  }
  if (known) {
    done(*std::move(known));  // NOLINT(bugprone-use-after-move): not queued when known
    return;
  }
  if (call) state_->Call(key, address, base_model, wants);
}

void ProducerLinks::Drop(const std::shared_ptr<const ProducerLink>& link) {
  MutexLock lock(state_->mu);
  for (auto& [key, e] : state_->entries) {
    if (e.link == link) e.link = nullptr;
  }
}

std::size_t ProducerLinks::known() const {
  MutexLock lock(state_->mu);
  return std::max(state_->entries.size(), state_->stubs.size());
}

}  // namespace baton
