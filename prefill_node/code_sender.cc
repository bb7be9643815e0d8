#include "prefill_node/code_sender.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/fault.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

using SteadyClock = std::chrono::steady_clock;

ConstSpan Bytes(const std::byte* data, std::size_t size) {
  return ConstSpan(reinterpret_cast<const uint8_t*>(data), size);
}

}  // namespace

FramePlan PlanFrame(const KvReady& ready, const KvPageLayout& layout, std::size_t first_page,
                    std::size_t pages) {
  FramePlan plan;
  std::uint64_t offset = 0;
  const auto add = [&](std::uint32_t head, ChunkComponent component, std::size_t page_offset,
                       std::size_t bytes) {
    plan.chunks.push_back({head, component, offset, pages * bytes});
    offset += pages * bytes;
    for (std::size_t p = first_page; p < first_page + pages; ++p) {
      plan.payload.push_back(Bytes(ready.pages[head][p].data() + page_offset, bytes));
    }
  };
  for (std::uint32_t h = 0; h < ready.pages.size(); ++h) {
    add(h, ChunkComponent::kKey, layout.k_offset(), layout.k_bytes());
    add(h, ChunkComponent::kValue, layout.v_offset(), layout.v_bytes());
    const auto begin = ready.pages[h].begin() + static_cast<std::ptrdiff_t>(first_page);
    plan.held.insert(plan.held.end(), begin, begin + static_cast<std::ptrdiff_t>(pages));
  }
  std::vector<std::string_view> pieces;
  pieces.reserve(plan.payload.size());
  for (const ConstSpan& s : plan.payload) {
    pieces.emplace_back(reinterpret_cast<const char*>(s.data()), s.size());
  }
  FrameHeader& header = plan.header;
  const std::int64_t base = ready.begin / kPageRows * kPageRows;  // row 0 of the first page
  header.kind = FrameKind::kRawKv;
  header.layer = static_cast<std::uint32_t>(ready.layer);
  header.token_begin =
      static_cast<std::uint32_t>(base + static_cast<std::int64_t>(first_page) * kPageRows);
  header.token_end = static_cast<std::uint32_t>(std::min<std::int64_t>(
      ready.end, base + static_cast<std::int64_t>(first_page + pages) * kPageRows));
  header.payload_bytes = offset;
  header.payload_hash = HashPayload(pieces);
  return plan;
}

CodeSender::CodeSender(TransferParams params, Engine& engine, std::shared_ptr<Peer> peer,
                       std::shared_ptr<WorkerPool> workers, TransferCallbacks callbacks)
    : params_(std::move(params)),
      engine_(engine),
      peer_(std::move(peer)),
      workers_(std::move(workers)),
      callbacks_(std::move(callbacks)) {}

void CodeSender::SetHandle(RequestHandle handle) {
  {
    MutexLock lock(mu_);
    handle_ = handle;
    has_handle_ = true;
    if (!ended_) return;
  }
  engine_.Abort(handle, absl::CancelledError("the transfer has ended"));
}

void CodeSender::Abort(const absl::Status& why) { End(why, /*abort_engine=*/true); }

std::uint32_t CodeSender::frames_sent() const {
  MutexLock lock(mu_);
  return summary_.frames;
}

void CodeSender::OnAdmitted(const Admission& admission) {
  std::function<void(const Admission&)> callback;
  {
    MutexLock lock(mu_);
    if (ended_) return;
    callback = callbacks_.on_admitted;
  }
  if (callback) callback(admission);
}

void CodeSender::OnKvReady(KvReady ready) {
  {
    MutexLock lock(mu_);
    if (ended_) return;
    ++encoding_;
  }
  workers_->Post([self = shared_from_this(), ready = std::move(ready)] { self->Encode(ready); });
}

void CodeSender::Encode(const KvReady& ready) {
  bool ended;
  {
    MutexLock lock(mu_);
    ended = ended_;
  }
  if (!ended) {
    if (absl::Status s = EncodeFrames(ready); !s.ok()) End(s, /*abort_engine=*/true);
  }
  {
    MutexLock lock(mu_);
    --encoding_;
  }
  EndIfComplete();
}

absl::Status CodeSender::EncodeFrames(const KvReady& ready) {
  if (ready.pages.empty() || ready.pages[0].empty()) return absl::OkStatus();
  const std::size_t total = ready.pages[0].size();
  const std::size_t step_bytes = ready.pages.size() * params_.page_layout.payload_bytes();
  const std::size_t step =
      std::max<std::size_t>(1, static_cast<std::size_t>(params_.frame_bytes) / step_bytes);
  for (std::size_t first = 0; first < total; first += step) {
    FramePlan plan = PlanFrame(ready, params_.page_layout, first, std::min(step, total - first));
    plan.header.transfer_id = params_.transfer_id;
    plan.header.generation = params_.generation;
    {
      MutexLock lock(mu_);
      plan.header.sequence = next_sequence_++;
    }
    Frame frame;
    BATON_ASSIGN_OR_RETURN(frame.head, EncodeFrameHead(plan.header, plan.chunks, params_.secret));
    if (frame.head.size() > kMaxTransportHeaderBytes) {
      return absl::UnimplementedError(
          absl::StrCat("a frame head of ", frame.head.size(), " bytes for ", ready.pages.size(),
                       " KV heads; the transport carries ", kMaxTransportHeaderBytes));
    }
    frame.payload = std::move(plan.payload);
    frame.owner = std::make_shared<std::vector<PageRef>>(std::move(plan.held));
    frame.bytes = plan.header.payload_bytes;
    {
      MutexLock lock(mu_);
      if (ended_) return absl::OkStatus();
      waiting_.push_back(std::move(frame));
    }
    Pump();
  }
  return BATON_FAULT_POINT("producer.after_layer");
}

// Only one caller pumps at a time, so that a transport that completes inside Send does not recurse.
void CodeSender::Pump() {
  {
    MutexLock lock(mu_);
    if (pumping_) return;
    pumping_ = true;
  }
  for (;;) {
    Frame frame;
    {
      MutexLock lock(mu_);
      if (ended_ || waiting_.empty() || in_flight_ >= params_.window) {
        pumping_ = false;
        return;
      }
      frame = std::move(waiting_.front());
      waiting_.pop_front();
      if (in_flight_++ == 0 && summary_.frames == 0) first_submit_ = SteadyClock::now();
    }
    if (absl::Status s = BATON_FAULT_POINT("producer.before_send"); !s.ok()) {
      OnSent(0, s);
      continue;
    }
    peer_->Send(std::move(frame.head), std::move(frame.payload), std::move(frame.owner),
                [self = shared_from_this(), bytes = frame.bytes](absl::Status status) {
                  self->OnSent(bytes, status);
                });
  }
}

void CodeSender::OnSent(std::uint64_t bytes, const absl::Status& status) {
  {
    MutexLock lock(mu_);
    --in_flight_;
    if (status.ok()) {
      ++summary_.frames;
      summary_.bytes += bytes;
      last_done_ = SteadyClock::now();
    }
  }
  if (!status.ok()) {
    End(absl::Status(status.code(), absl::StrCat("sending K/V: ", status.message())),
        /*abort_engine=*/true);
    return;
  }
  Pump();
  EndIfComplete();
}

void CodeSender::OnFinished(const FinishInfo& info) {
  if (!info.status.ok()) {
    End(info.status, /*abort_engine=*/false);
    return;
  }
  {
    MutexLock lock(mu_);
    engine_done_ = true;
    summary_.queue_s = info.queue_s;
    summary_.prefill_s = info.total_s - info.queue_s;
    summary_.computed_tokens = static_cast<std::uint32_t>(info.computed_tokens);
  }
  EndIfComplete();
}

void CodeSender::EndIfComplete() {
  {
    MutexLock lock(mu_);
    if (ended_ || !engine_done_ || encoding_ > 0 || in_flight_ > 0 || !waiting_.empty()) return;
    summary_.lane = peer_->lane();
    summary_.send_s = std::chrono::duration<double>(last_done_ - first_submit_).count();
  }
  End(absl::OkStatus(), /*abort_engine=*/false);
}

void CodeSender::End(const absl::Status& status, bool abort_engine) {
  TransferCallbacks callbacks;
  std::deque<Frame> dropped;  // gives pages back outside the lock
  TransferSummary summary;
  RequestHandle handle = 0;
  {
    MutexLock lock(mu_);
    if (ended_) return;
    ended_ = true;
    dropped.swap(waiting_);
    callbacks = std::move(callbacks_);
    callbacks_ = {};
    summary = summary_;
    handle = handle_;
    abort_engine = abort_engine && has_handle_ && !engine_done_;
  }
  if (abort_engine) engine_.Abort(handle, status);
  if (callbacks.on_end) callbacks.on_end(status, summary);
}

}  // namespace baton
