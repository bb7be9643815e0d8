#include "common/transport/ucx/ucx_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/transport/ucx/ucx_core.h"
#include "common/transport/ucx/ucx_peer.h"
#include "common/transport/ucx/ucx_util.h"

namespace baton {
namespace ucx {

void UcxPeer::Send(std::string header, std::vector<ConstSpan> payload,
                   std::shared_ptr<const void> owner, SendDone done) {
  auto op = std::make_unique<SendOp>();
  op->peer = shared_from_this();
  op->owner = std::move(owner);
  op->done = std::move(done);
  for (const ConstSpan span : payload) {
    if (span.empty()) continue;
    op->bytes += span.size();
    op->payload.push_back({const_cast<uint8_t*>(span.data()), span.size()});
  }
  absl::Status refused;
  if (header.size() > kMaxTransportHeaderBytes) {
    refused = absl::InvalidArgumentError(absl::StrCat(
        "header of ", header.size(), " bytes; the limit is ", kMaxTransportHeaderBytes));
  } else if (op->bytes > core_->options().max_payload_bytes) {
    refused = absl::InvalidArgumentError(absl::StrCat(
        "payload of ", op->bytes, " bytes; the limit is ", core_->options().max_payload_bytes));
  } else if (failed()) {
    refused = status();
  }
  if (!refused.ok()) return core_->Report(*op, refused);
  op->header = core_->MakeHeader(MessagePrefix::kData, header);
  core_->Submit(
      [core = core_.get(), op = std::move(op)]() mutable { core->SubmitSend(std::move(op)); });
}

std::string UcxPeer::lane() const {
  MutexLock lock(mu_);
  return lane_.empty() ? std::string(kUnknownLane) : lane_;
}

void UcxPeer::SetLane(std::string lane) {
  MutexLock lock(mu_);
  lane_ = std::move(lane);
}

absl::Status UcxPeer::status() const {
  MutexLock lock(mu_);
  return status_;
}

bool UcxPeer::MarkFailed(const absl::Status& why) {
  MutexLock lock(mu_);
  if (failed_.load(std::memory_order_relaxed)) return false;
  status_ = why.ok() ? absl::UnavailableError("closed") : why;
  failed_.store(true, std::memory_order_release);
  return true;
}

void UcxPeer::Close(absl::Status why) {
  if (!MarkFailed(why)) return;
  core_->Submit([core = core_.get(), self = shared_from_this()] {
    core->FailPeer(self, self->status(), /*reported=*/false);
  });
}

namespace {

class UcxTransportImpl final : public UcxTransport {
 public:
  explicit UcxTransportImpl(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  ~UcxTransportImpl() override { core_->Stop(); }

  std::string address() const override { return core_->address(); }
  std::string version() const override { return VersionString(); }
  PeerId instance_id() const override { return core_->instance_id(); }
  absl::StatusOr<std::shared_ptr<Peer>> Connect(std::string_view address,
                                                uint64_t incarnation) override {
    return core_->Connect(address, incarnation);
  }
  void SetReceiver(Receiver* receiver) override { core_->SetReceiver(receiver); }
  TransportStats stats() const override { return core_->stats(); }

 private:
  const std::shared_ptr<Core> core_;
};

}  // namespace
}  // namespace ucx

absl::StatusOr<std::unique_ptr<Transport>> UcxTransport::Create(const UcxOptions& options) {
  if (options.tls.empty()) return absl::InvalidArgumentError("no UCX transports (tls) given");
  if (options.window < 1) return absl::InvalidArgumentError("window must be at least 1");
  for (const auto& [name, value] :
       {std::pair{"keepalive", options.keepalive}, std::pair{"heartbeat", options.heartbeat},
        std::pair{"progress_deadline", options.progress_deadline}}) {
    if (value <= absl::ZeroDuration()) {
      return absl::InvalidArgumentError(absl::StrCat(name, " must be positive"));
    }
  }
  auto core = std::make_shared<ucx::Core>(options);
  BATON_RETURN_IF_ERROR(core->Start());
  return std::make_unique<ucx::UcxTransportImpl>(std::move(core));
}

}  // namespace baton
