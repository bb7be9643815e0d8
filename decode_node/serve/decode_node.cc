#include "decode_node/serve/decode_node.h"

#include <utility>

#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/node/command_line.h"
#include "common/node/node_server.h"
#include "common/node/space_proto.h"
#include "decode_node/serve/code_receiver.h"
#include "decode_node/serve/service.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kTick(50);

}  // namespace

class DecodeNode::Impl {
 public:
  Impl(const DecodeConfig& config, std::shared_ptr<Transport> transport)
      : config_(config), transport_(std::move(transport)) {}

  // Callers go first, then what they call.
  ~Impl() {
    Stop();
    server_.reset();
    Stop();  // sessions that began while the server went down
    if (transport_) transport_->SetReceiver(nullptr);
    host_.reset();
    if (workers_) workers_->Stop();
  }

  absl::Status Start() {
    BATON_ASSIGN_OR_RETURN(NodeBase base, StartNodeBase("decode", config_, metrics_));
    server_ = std::move(base.server);
    host_ = std::move(base.host);
    workers_ = std::make_shared<WorkerPool>(base.threads.worker);
    receiver_ =
        std::make_unique<CodeReceiver>(workers_, metrics_, config_.transport.max_landing_bytes);
    service_ = std::make_unique<DecodeService>(
        DecodeServiceOptions{NodeName(config_.node.name), incarnation_, config_.handoff,
                             config_.engine.max_waiting},
        *host_, MakeSessionEnv());
    if (transport_) transport_->SetReceiver(receiver_.get());
    return server_->Serve({.service = service_.get(),
                           .service_name = "baton.v1.Decode",
                           .draining = [this] { return service_->draining(); },
                           .tick_interval = kTick,
                           .tick = [this] { service_->Tick(); },
                           .transport = transport_ ? transport_->version() : "none"});
  }

  void Drain(std::chrono::nanoseconds timeout) {
    service_->StartDraining();
    server_->Drain(timeout, *host_);
  }

  const DecodeConfig config_;
  const std::shared_ptr<Transport> transport_;
  const std::uint64_t incarnation_ = NewIncarnation();
  MetricRegistry metrics_;
  std::unique_ptr<ModelHost> host_;
  std::shared_ptr<WorkerPool> workers_;
  std::unique_ptr<CodeReceiver> receiver_;
  std::unique_ptr<ProducerLinks> links_;
  std::unique_ptr<DecodeService> service_;
  std::unique_ptr<NodeServer> server_;

 private:
  void Stop() {
    if (!service_) return;
    service_->StartDraining();
    service_->CancelAll(absl::UnavailableError("the decode node stops"));
  }

  std::shared_ptr<const HandoffEnv> MakeHandoffEnv() {
    const auto strategy_label = [&](const char* second) {
      return std::vector<std::string>{"strategy", second};
    };
    // The families exist from the start, so that a dashboard sees zeros and not gaps.
    HistogramFamily seconds = metrics_.AddHistogramFamily(
        "baton_handoff_seconds", "Hand-off from reserved pages to complete prefix.",
        strategy_label("lane"));
    CounterFamily bytes = metrics_.AddCounterFamily(
        "baton_handoff_bytes_total", "Payload of hand-offs.", strategy_label("lane"));
    CounterFamily failures = metrics_.AddCounterFamily(
        "baton_handoff_failures_total", "Attempts that failed.", strategy_label("reason"));
    if (!transport_) return nullptr;
    ProducerLinksOptions options;
    options.self = MakeIdentity(NodeName(config_.node.name), incarnation_, "decode");
    const auto transport_address = [this] { return transport_->address(); };
    options.transport_address = transport_address;
    options.transport_version = transport_->version();
    options.timeout = config_.handoff.link_timeout;
    options.max_message_bytes = static_cast<int>(config_.rpc.max_message_bytes);
    const config::TlsConfig& tls = config_.rpc.tls;
    if (tls.enabled()) options.tls = ChannelTls{tls.ca, tls.cert, tls.key, ""};
    links_ = std::make_unique<ProducerLinks>(std::move(options));
    return std::make_shared<const HandoffEnv>(HandoffEnv{*receiver_, *links_, config_.handoff,
                                                         incarnation_, transport_address, seconds,
                                                         bytes, failures});
  }

  std::shared_ptr<const SessionEnv> MakeSessionEnv() {
    return std::make_shared<const SessionEnv>(SessionEnv{
        *host_, workers_, MakeHandoffEnv(), config_.handoff,
        metrics_.AddCounterFamily("baton_requests_total", "Requests ended, by outcome.",
                                  {"model", "outcome"}),
        metrics_.AddCounterFamily("baton_prefixes_total",
                                  "Requests with a shareable prefix, by where it came from.",
                                  {"where"}),
        metrics_.AddCounterFamily("baton_handoff_fallbacks_total",
                                  "Requests whose prefix was computed here although a hand-off was "
                                  "asked for, by what was asked for.",
                                  {"model", "strategy"}),
        metrics_.AddHistogramFamily("baton_time_to_first_token_seconds",
                                    "Arrival at this node to the first token.", {"model"}),
        metrics_.AddHistogramFamily("baton_ttft_stage_seconds",
                                    "What the time to first token is made of; the stages of a "
                                    "request add up to it.",
                                    {"model", "stage"}),
        metrics_.AddHistogramFamily("baton_inter_token_latency_seconds",
                                    "Time between tokens of one request.", {"model"},
                                    ShortLatencyBuckets()),
        metrics_.AddHistogramFamily("baton_e2e_request_latency_seconds",
                                    "Arrival at this node to the last token.", {"model"}),
        std::make_shared<DriftMonitor>(config_.handoff.drift_sample, metrics_, RandomId64())});
  }
};

absl::StatusOr<std::unique_ptr<DecodeNode>> DecodeNode::Start(
    const DecodeConfig& config, std::shared_ptr<Transport> transport) {
  auto impl = std::make_unique<Impl>(config, std::move(transport));
  BATON_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<DecodeNode>(new DecodeNode(std::move(impl)));
}

DecodeNode::DecodeNode(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DecodeNode::~DecodeNode() = default;
int DecodeNode::grpc_port() const { return impl_->server_->grpc_port(); }
int DecodeNode::http_port() const { return impl_->server_->http_port(); }
ModelHost& DecodeNode::host() { return *impl_->host_; }
DecodeService& DecodeNode::service() { return *impl_->service_; }
const CodeReceiver& DecodeNode::receiver() const { return *impl_->receiver_; }
MetricRegistry& DecodeNode::metrics() { return impl_->metrics_; }
void DecodeNode::Drain(std::chrono::nanoseconds timeout) { impl_->Drain(timeout); }

}  // namespace baton
