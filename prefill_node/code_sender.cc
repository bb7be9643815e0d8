#include "prefill_node/code_sender.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/fault.h"
#include "common/base/status_macros.h"
#include "common/scd/q4_kv.h"

namespace baton {
namespace {

using SteadyClock = std::chrono::steady_clock;

ConstSpan Bytes(const std::byte* data, std::size_t size) {
  return ConstSpan(reinterpret_cast<const uint8_t*>(data), size);
}

// Fills in what follows from the report and the payload.
void Describe(const KvReady& ready, FrameKind kind, std::size_t first_page, std::size_t pages,
              FramePlan& plan) {
  std::vector<std::string_view> pieces;
  pieces.reserve(plan.payload.size());
  FrameHeader& header = plan.header;
  for (const ConstSpan& s : plan.payload) {
    pieces.emplace_back(reinterpret_cast<const char*>(s.data()), s.size());
    header.payload_bytes += s.size();
  }
  const std::int64_t base = ready.begin / kPageRows * kPageRows;  // row 0 of the first page
  header.kind = kind;
  header.layer = static_cast<std::uint32_t>(ready.layer);
  header.token_begin =
      static_cast<std::uint32_t>(base + static_cast<std::int64_t>(first_page) * kPageRows);
  header.token_end = static_cast<std::uint32_t>(std::min<std::int64_t>(
      ready.end, base + static_cast<std::int64_t>(first_page + pages) * kPageRows));
  header.payload_hash = HashPayload(pieces);
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
  Describe(ready, FrameKind::kRawKv, first_page, pages, plan);
  return plan;
}

FramePlan PlanQ4Frame(const KvReady& ready, const KvPageLayout& layout, std::size_t first_page,
                      std::size_t pages, std::int32_t first_token) {
  const std::size_t groups = pages / kQ4GroupPages;
  const std::size_t key_bytes = Q4KeyBytes(layout.head_dim);
  const std::size_t value_bytes = Q4ValueBytes(layout.head_dim);
  FramePlan plan;
  plan.coded.resize(ready.pages.size() * groups * (key_bytes + value_bytes));
  std::byte* next = plan.coded.data();
  std::uint64_t offset = 0;
  for (std::uint32_t h = 0; h < ready.pages.size(); ++h) {
    std::byte* keys = next;
    std::byte* values = keys + groups * key_bytes;
    next = values + groups * value_bytes;
    plan.chunks.push_back({h, ChunkComponent::kKey, offset, groups * key_bytes});
    plan.chunks.push_back(
        {h, ChunkComponent::kValue, offset + groups * key_bytes, groups * value_bytes});
    offset += groups * (key_bytes + value_bytes);
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t page = first_page + g * kQ4GroupPages;
      const auto row = ready.begin + static_cast<std::int32_t>(page) * kPageRows;
      EncodeQ4(layout, ready.pages[h][page].data(), ready.pages[h][page + 1].data(),
               std::clamp(first_token - row, 0, kQ4GroupRows - 1), keys + g * key_bytes,
               values + g * value_bytes);
    }
  }
  plan.payload.push_back(Bytes(plan.coded.data(), plan.coded.size()));
  Describe(ready, FrameKind::kQ4Kv, first_page, pages, plan);
  return plan;
}

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
  if (params_.coding == Coding::kQ4) ready = WholeGroups(std::move(ready));
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
