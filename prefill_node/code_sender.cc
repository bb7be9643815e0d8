#include "prefill_node/code_sender.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/fault.h"
#include "common/base/status_macros.h"
#include "common/scd/q4_kv.h"
#include "common/scd/stream_rows.h"

namespace baton {
namespace {

using SteadyClock = std::chrono::steady_clock;

}  // namespace

CodeSender::CodeSender(TransferParams params, Engine& engine, std::shared_ptr<Peer> peer,
                       std::shared_ptr<WorkerPool> workers, TransferCallbacks callbacks)
    : params_(std::move(params)),
      engine_(engine),
      peer_(std::move(peer)),
      workers_(std::move(workers)),
      callbacks_(std::move(callbacks)) {
  summary_.coding = params_.coding;
}

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

bool CodeSender::ended() const {
  MutexLock lock(mu_);
  return ended_;
}

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
  if (params_.coding == Coding::kQ4) ready = WholeGroups(std::move(ready));
  PostEncoding([this, ready = std::move(ready)] { return EncodeFrames(ready); });
}

void CodeSender::OnStates(StatesReady states) {
  if (params_.coding == Coding::kSelective) {
    PostEncoding([this, states = std::move(states)] { return EncodeStream(states); });
    return;
  }
  if (!params_.coder->Wants(states.layer)) return;
  StatesReady whole = params_.coder->WholeBlocks(std::move(states));
  if (whole.rows.empty()) return;
  PostEncoding([this, whole = std::move(whole)] { return EncodeCodes(whole); });
}

void CodeSender::SendStored() {
  if (params_.coder->stored().empty()) return;
  PostEncoding([this]() -> absl::Status {
    const BlockCoder& coder = *params_.coder;
    const auto layers = static_cast<int>(coder.job().cut.layers.size());
    for (int layer = 0; layer < layers; ++layer) {
      BATON_RETURN_IF_ERROR(EnqueueCodes(layer, coder.job().first_block, coder.stored()));
    }
    return absl::OkStatus();
  });
}

void CodeSender::FinishWithoutEngine() {
  {
    MutexLock lock(mu_);
    engine_done_ = true;
  }
  EndIfComplete();
}

void CodeSender::PostEncoding(std::function<absl::Status()> encode) {
  {
    MutexLock lock(mu_);
    if (ended_) return;
    ++encoding_;
  }
  workers_->Post([self = shared_from_this(), encode = std::move(encode)] { self->Encode(encode); });
}

void CodeSender::Encode(const std::function<absl::Status()>& encode) {
  bool ended;
  {
    MutexLock lock(mu_);
    ended = ended_;
  }
  if (!ended) {
    if (absl::Status s = encode(); !s.ok()) End(s, /*abort_engine=*/true);
  }
  {
    MutexLock lock(mu_);
    --encoding_;
  }
  EndIfComplete();
}

KvReady CodeSender::WholeGroups(KvReady ready) {
  if (ready.begin % kQ4GroupRows != 0) {
    auto odd = odd_pages_.extract(ready.layer);
    for (std::size_t h = 0; h < ready.pages.size(); ++h) {
      ready.pages[h].insert(ready.pages[h].begin(), std::move(odd.mapped()[h]));
    }
    ready.begin -= kPageRows;
  }
  if (ready.end % kQ4GroupRows != 0) {
    std::vector<PageRef>& odd = odd_pages_[ready.layer];
    for (auto& pages : ready.pages) {
      odd.push_back(std::move(pages.back()));
      pages.pop_back();
    }
    ready.end -= kPageRows;
  }
  return ready;
}

absl::Status CodeSender::EncodeFrames(const KvReady& ready) {
  if (ready.pages.empty() || ready.pages[0].empty()) return absl::OkStatus();
  const KvPageLayout& layout = params_.page_layout;
  const std::size_t total = ready.pages[0].size();
  const std::size_t heads = ready.pages.size();
  const auto frame_bytes = static_cast<std::size_t>(params_.frame_bytes);
  std::size_t first = 0;
  if (params_.coding == Coding::kQ4) {
    const std::int32_t raw_from =
        std::max(ready.begin, (params_.prefix_tokens - kQ4ResidualRows) & -kQ4GroupRows);
    const std::size_t coded =
        std::min(total, static_cast<std::size_t>((raw_from - ready.begin) / kPageRows));
    const std::size_t group_bytes =
        heads * (Q4KeyBytes(layout.head_dim) + Q4ValueBytes(layout.head_dim));
    const std::size_t step = kQ4GroupPages * std::max<std::size_t>(1, frame_bytes / group_bytes);
    for (; first < coded; first += step) {
      BATON_RETURN_IF_ERROR(Enqueue(
          PlanQ4Frame(ready, layout, first, std::min(step, coded - first), params_.first_token)));
    }
    first = coded;
  }
  const std::size_t step = std::max<std::size_t>(1, frame_bytes / (heads * layout.payload_bytes()));
  for (; first < total; first += step) {
    BATON_RETURN_IF_ERROR(Enqueue(PlanFrame(ready, layout, first, std::min(step, total - first))));
  }
  return BATON_FAULT_POINT("producer.after_layer");
}

absl::Status CodeSender::EncodeStream(const StatesReady& states) {
  const std::int64_t row_bytes = static_cast<std::int64_t>(StreamRowBytes(states.width - 1));
  const auto step = static_cast<std::int32_t>(
      std::max<std::int64_t>(1, params_.frame_bytes / (row_bytes * kPageRows)) * kPageRows);
  const std::int32_t rows = states.end - states.begin;
  for (std::int32_t first = 0; first < rows; first += step) {
    BATON_RETURN_IF_ERROR(Enqueue(PlanStreamFrame(states, first, std::min(step, rows - first))));
  }
  return BATON_FAULT_POINT("producer.after_layer");
}

absl::Status CodeSender::EncodeCodes(const StatesReady& whole) {
  const auto blocks = params_.coder->Encode(whole);
  BATON_RETURN_IF_ERROR(EnqueueCodes(whole.layer, whole.begin / kCodeBlockRows, blocks));
  params_.coder->Keep(whole);
  return BATON_FAULT_POINT("producer.after_layer");
}

absl::Status CodeSender::EnqueueCodes(int layer, std::int32_t first_block,
                                      std::span<const std::shared_ptr<const BlockCodes>> blocks) {
  const std::size_t block_bytes =
      params_.coder->job().cut.layers[static_cast<std::size_t>(layer)].block_bytes;
  if (block_bytes == 0) return absl::OkStatus();  // the consumer runs the layer itself
  const std::size_t step =
      std::max<std::size_t>(1, static_cast<std::size_t>(params_.frame_bytes) / block_bytes);
  for (std::size_t first = 0; first < blocks.size(); first += step) {
    const auto part = blocks.subspan(first, std::min(step, blocks.size() - first));
    BATON_RETURN_IF_ERROR(Enqueue(
        PlanCodeFrame(layer, first_block + static_cast<std::int32_t>(first), part, block_bytes)));
  }
  return absl::OkStatus();
}

absl::Status CodeSender::Enqueue(FramePlan plan) {
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
        absl::StrCat("a frame head of ", frame.head.size(), " bytes for ", plan.chunks.size() / 2,
                     " KV heads; the transport carries ", kMaxTransportHeaderBytes));
  }
  frame.payload = std::move(plan.payload);
  frame.bytes = plan.header.payload_bytes;
  frame.owner = std::make_shared<FramePlan>(std::move(plan));
  {
    MutexLock lock(mu_);
    if (ended_) return absl::OkStatus();
    waiting_.push_back(std::move(frame));
  }
  Pump();
  return absl::OkStatus();
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
      if (in_flight_++ == 0) {
        busy_since_ = SteadyClock::now();
        if (summary_.frames == 0) first_submit_ = busy_since_;
      }
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
    const auto now = SteadyClock::now();
    if (--in_flight_ == 0) {
      summary_.busy_s += std::chrono::duration<double>(now - busy_since_).count();
    }
    if (status.ok()) {
      ++summary_.frames;
      summary_.bytes += bytes;
      last_done_ = now;
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
