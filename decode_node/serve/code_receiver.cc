#include "decode_node/serve/code_receiver.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/fault.h"
#include "common/base/status_macros.h"
#include "common/scd/q4_kv.h"
#include "common/scd/stream_rows.h"
#include "kernels/kv_write.h"

namespace baton {
namespace {

using SteadyClock = std::chrono::steady_clock;

std::uint32_t PagesOf(const FrameHeader& h) {
  return (h.token_end - h.token_begin + kPageRows - 1) / kPageRows;
}

// Bytes of one KV head in a frame.
struct PartBytes {
  std::uint64_t key;
  std::uint64_t value;
};
PartBytes PartsOf(const FrameHeader& h, const KvPageLayout& layout) {
  const std::uint64_t pages = PagesOf(h);
  if (h.kind == FrameKind::kRawKv) return {pages * layout.k_bytes(), pages * layout.v_bytes()};
  const std::uint64_t groups = pages * kPageRows / kQ4GroupRows;
  return {groups * Q4KeyBytes(layout.head_dim), groups * Q4ValueBytes(layout.head_dim)};
}

// Rows that a frame of this kind has whole multiples of.
std::uint32_t UnitRows(FrameKind kind) {
  if (kind == FrameKind::kCodes) return kCodeBlockRows;
  return kind == FrameKind::kQ4Kv ? kQ4GroupRows : kPageRows;
}

}  // namespace

// The buffer of one frame. It becomes a worker's task when the fence has passed.
class FrameLanding final : public Landing, public std::enable_shared_from_this<FrameLanding> {
 public:
  FrameLanding(std::shared_ptr<CodeReceiver::Shared> shared,
               std::shared_ptr<IncomingTransfer> transfer, FrameHead head, FrameBuffer buffer)
      : shared_(std::move(shared)),
        transfer_(std::move(transfer)),
        head_(std::move(head)),
        buffer_(std::move(buffer)) {}

  ~FrameLanding() override {
    shared_->buffered.fetch_sub(static_cast<std::int64_t>(head_.header.payload_bytes));
    shared_->buffers.Give(std::move(buffer_));
  }

  std::uint8_t* data() override { return buffer_.data(); }

  void OnComplete(absl::Status status) override {
    if (!status.ok()) {
      Lose("receive_failed",
           absl::Status(status.code(), absl::StrCat("receiving a frame: ", status.message())));
      return;
    }
    shared_->workers->Post([self = shared_from_this()] { self->Import(); });
  }

 private:
  void Import() {
    const auto start = SteadyClock::now();
    if (absl::Status s = BATON_FAULT_POINT("decode.on_frame"); !s.ok()) {
      Lose("fault", s);
      return;
    }
    const std::string_view payload(reinterpret_cast<const char*>(buffer_.data()),
                                   head_.header.payload_bytes);
    if (absl::Status s = VerifyPayload(head_.header, payload); !s.ok()) {
      Lose("corrupt", s);
      return;
    }
    if (!transfer_->Import(head_, buffer_.data(), start)) {
      shared_->dropped.With({"stale"}).Increment();
      return;
    }
    transfer_->callbacks_.on_rows();
  }

  void Lose(const char* reason, absl::Status status) {
    shared_->dropped.With({reason}).Increment();
    transfer_->callbacks_.on_error(std::move(status));
  }

  const std::shared_ptr<CodeReceiver::Shared> shared_;
  const std::shared_ptr<IncomingTransfer> transfer_;
  const FrameHead head_;
  FrameBuffer buffer_;
};

IncomingTransfer::IncomingTransfer(const IncomingSpec& spec, IncomingCallbacks callbacks)
    : spec_{spec.transfer_id, spec.generation, spec.secret,  spec.page_layout,
            spec.coding,      nullptr,         spec.decoder, spec.cut},
      callbacks_(std::move(callbacks)),
      first_row_(spec.landing->first_page * kPageRows),
      end_row_(spec.landing->end),
      layers_(spec.landing->layers),
      kv_heads_(spec.landing->kv_heads),
      run_(spec.landing->run),
      hidden_(spec.landing->stream == nullptr ? 0 : spec.landing->stream->hidden()),
      last_frame_ns_(SteadyClock::now().time_since_epoch().count()),
      landing_(spec.landing) {
  const auto pages = static_cast<std::size_t>(end_row_ / kPageRows - landing_->first_page);
  taken_.assign(static_cast<std::size_t>(layers_), std::vector<bool>(pages));
  // Of a run only its first layer: the stream.
  pages_missing_ =
      static_cast<std::int64_t>(pages) * (layers_ - std::max(0, spec.landing->run.size() - 1));
}

IncomingProgress IncomingTransfer::progress() const {
  MutexLock lock(mu_);
  IncomingProgress p = progress_;
  p.complete = pages_missing_ == 0;
  p.last_frame = SteadyClock::time_point(SteadyClock::duration(last_frame_ns_.load()));
  return p;
}

bool IncomingTransfer::Claim(std::uint32_t sequence) {
  MutexLock lock(claim_mu_);
  return claimed_.insert(sequence).second;
}

bool IncomingTransfer::Expects(FrameKind kind) const {
  switch (kind) {
    case FrameKind::kRawKv:
      return spec_.coding != Coding::kReuse;
    case FrameKind::kQ4Kv:
      return spec_.coding == Coding::kQ4;
    case FrameKind::kCodes:
      return spec_.coding == Coding::kReuse;
    case FrameKind::kStream:
      return spec_.coding == Coding::kSelective;
    case FrameKind::kError:
      return false;
  }
  return false;
}

bool IncomingTransfer::ExpectsOf(FrameKind kind, int layer) const {
  const bool entry = !run_.empty() && layer == run_.begin;
  if (kind == FrameKind::kStream) return entry;
  return !run_.contains(layer) || (kind == FrameKind::kCodes && entry);
}

absl::Status IncomingTransfer::CheckHead(const FrameHead& head, std::uint64_t payload_bytes) const {
  const FrameHeader& h = head.header;
  if (!Expects(h.kind)) return absl::InvalidArgumentError("kind");
  if (h.layer >= static_cast<std::uint32_t>(layers_) ||
      !ExpectsOf(h.kind, static_cast<int>(h.layer))) {
    return absl::InvalidArgumentError("layer");
  }
  const std::uint32_t unit = UnitRows(h.kind);
  if (h.token_begin % unit != 0 || h.token_end % unit != 0 ||
      h.token_begin < static_cast<std::uint32_t>(first_row_) ||
      h.token_end > (static_cast<std::uint32_t>(end_row_) + unit - 1) / unit * unit ||
      h.token_begin >= h.token_end) {
    return absl::InvalidArgumentError("token range");
  }
  if (payload_bytes != h.payload_bytes) return absl::InvalidArgumentError("lengths");
  return CheckChunks(head);
}

// The chunk table, for a layer and a range that were found good.
absl::Status IncomingTransfer::CheckChunks(const FrameHead& head) const {
  const FrameHeader& h = head.header;
  if (h.kind == FrameKind::kCodes) {
    const std::uint64_t blocks = (h.token_end - h.token_begin) / kCodeBlockRows;
    const bool fits = h.payload_bytes == blocks * spec_.cut.layers[h.layer].block_bytes &&
                      head.chunks.size() == 1;
    return fits ? absl::OkStatus() : absl::InvalidArgumentError("lengths");
  }
  if (h.kind == FrameKind::kStream) {
    const bool fits = h.payload_bytes == (h.token_end - h.token_begin) * StreamRowBytes(hidden_) &&
                      head.chunks.size() == 1;
    return fits ? absl::OkStatus() : absl::InvalidArgumentError("lengths");
  }
  const auto kv_heads = static_cast<std::uint32_t>(kv_heads_);
  const auto [key, value] = PartsOf(h, spec_.page_layout);
  if (head.chunks.size() != 2 * std::size_t{kv_heads} ||
      h.payload_bytes != kv_heads * (key + value)) {
    return absl::InvalidArgumentError("lengths");
  }
  for (std::uint32_t i = 0; i < head.chunks.size(); ++i) {
    const bool is_key = i % 2 == 0;
    const FrameChunk expected{i / 2, is_key ? ChunkComponent::kKey : ChunkComponent::kValue,
                              i / 2 * (key + value) + (is_key ? 0 : key), is_key ? key : value};
    if (!(head.chunks[i] == expected)) return absl::InvalidArgumentError("chunk table");
  }
  return absl::OkStatus();
}

// Page `page` counts from the sequence's start. Rows before the landing's begin are the sinks this
// node computed itself: they stay.
void IncomingTransfer::CopyPage(const PrefixLanding& landing, const FrameHead& head,
                                const std::uint8_t* payload, std::uint32_t kv_head,
                                std::int32_t page, std::vector<std::byte>& scratch) const {
  const KvPageLayout& layout = spec_.page_layout;
  const auto in_frame = static_cast<std::size_t>(
      page - static_cast<std::int32_t>(head.header.token_begin) / kPageRows);
  const auto* k = reinterpret_cast<const std::byte*>(payload + head.chunks[2 * kv_head].offset);
  const auto* v = reinterpret_cast<const std::byte*>(payload + head.chunks[2 * kv_head + 1].offset);
  const PageRef& ref = landing.pages[head.header.layer * static_cast<std::size_t>(kv_heads_) +
                                     kv_head][static_cast<std::size_t>(page - landing.first_page)];
  const std::int32_t row_begin = std::max(0, landing.begin - page * kPageRows);
  if (row_begin > 0) scratch.resize(layout.payload_bytes());
  std::byte* rows = row_begin == 0 ? ref.data() + layout.k_offset() : scratch.data();
  if (head.header.kind == FrameKind::kQ4Kv) {
    const std::size_t group = in_frame / kQ4GroupPages;
    DecodeQ4(layout, k + group * Q4KeyBytes(layout.head_dim),
             v + group * Q4ValueBytes(layout.head_dim), static_cast<int>(in_frame % kQ4GroupPages),
             rows);
  } else {
    std::memcpy(rows, k + in_frame * layout.k_bytes(), layout.k_bytes());
    std::memcpy(rows + layout.k_bytes(), v + in_frame * layout.v_bytes(), layout.v_bytes());
  }
  if (row_begin > 0) CopyKvRows(layout, rows, ref.data(), row_begin, kPageRows);
}

void IncomingTransfer::WriteBlockPage(const PrefixLanding& landing, std::size_t layer,
                                      std::int32_t page, const float* kv,
                                      std::vector<std::byte>& scratch) const {
  const KvPageLayout& layout = spec_.page_layout;
  const std::int64_t kv_dim = spec_.decoder->kv_dim();
  const std::int32_t row_begin = std::max(0, landing.begin - page * kPageRows);
  scratch.resize(layout.page_bytes());
  for (int head = 0; head < kv_heads_; ++head) {
    for (int row = row_begin; row < kPageRows; ++row) {
      const float* k = kv + row * 2 * kv_dim + head * layout.head_dim;
      WriteKvRow(layout, scratch.data(), row, k, k + kv_dim, /*position=*/0);
    }
    // Not written in place: positions are not this writer's.
    const PageRef& ref =
        landing.pages[layer * static_cast<std::size_t>(kv_heads_) + static_cast<std::size_t>(head)]
                     [static_cast<std::size_t>(page - landing.first_page)];
    CopyKvRows(layout, scratch.data() + layout.k_offset(), ref.data(), row_begin, kPageRows);
  }
}

void IncomingTransfer::WriteStream(const PrefixLanding& landing, const FrameHead& head,
                                   const std::uint8_t* payload,
                                   const std::vector<std::int32_t>& pages) const {
  std::vector<float> rows(static_cast<std::size_t>(kPageRows * hidden_));
  for (const std::int32_t page : pages) {
    const std::int32_t begin = std::max(landing.begin, page * kPageRows);
    const std::int32_t count = (page + 1) * kPageRows - begin;
    const auto in_frame =
        static_cast<std::size_t>(begin - static_cast<std::int32_t>(head.header.token_begin));
    DecodeStreamRows(
        reinterpret_cast<const std::byte*>(payload) + in_frame * StreamRowBytes(hidden_), count,
        hidden_, rows.data());
    landing.stream->Write(begin, count, rows.data());
  }
}

void IncomingTransfer::DecodeStream(const PrefixLanding& landing, const FrameHead& head,
                                    const std::uint8_t* payload,
                                    const std::vector<std::int32_t>& pages) const {
  const CodeCut::Layer& cut = spec_.cut.layers[head.header.layer];
  const auto first_row = static_cast<std::int32_t>(head.header.token_begin);
  std::vector<float> rows(static_cast<std::size_t>(kCodeBlockRows * hidden_));
  SerialExecutor executor;
  std::int32_t decoded = -1;  // block that rows holds
  for (const std::int32_t page : pages) {
    const std::int32_t block = page * kPageRows / kCodeBlockRows;
    if (block != decoded) {
      const auto in_frame = static_cast<std::size_t>(block - first_row / kCodeBlockRows);
      spec_.decoder->DecodeStream(
          reinterpret_cast<const std::byte*>(payload) + in_frame * cut.block_bytes, cut.components,
          rows.data(), executor);
      decoded = block;
    }
    const std::int32_t begin = std::max(landing.begin, page * kPageRows);
    landing.stream->Write(begin, (page + 1) * kPageRows - begin,
                          rows.data() + (begin - block * kCodeBlockRows) * hidden_);
  }
}

void IncomingTransfer::DecodePages(const PrefixLanding& landing, const FrameHead& head,
                                   const std::uint8_t* payload,
                                   const std::vector<std::int32_t>& pages) const {
  constexpr int kBlockPages = kCodeBlockRows / kPageRows;
  const CodeDecoder& decoder = *spec_.decoder;
  const std::size_t layer = head.header.layer;
  const CodeCut::Layer& cut = spec_.cut.layers[layer];
  const auto first_row = static_cast<std::int32_t>(head.header.token_begin);
  std::vector<float> kv(static_cast<std::size_t>(kCodeBlockRows * 2 * decoder.kv_dim()));
  std::vector<std::byte> scratch;
  SerialExecutor executor;
  std::int32_t decoded = -1;  // block that kv holds
  for (const std::int32_t page : pages) {
    const std::int32_t block = page / kBlockPages;
    if (block != decoded) {
      const auto in_frame = static_cast<std::size_t>(block - first_row / kCodeBlockRows);
      decoder.Decode(static_cast<int>(layer),
                     reinterpret_cast<const std::byte*>(payload) + in_frame * cut.block_bytes,
                     cut.components, block * kCodeBlockRows, kv.data(), executor);
      decoded = block;
    }
    const std::int64_t row = std::int64_t{page % kBlockPages} * kPageRows;
    WriteBlockPage(landing, layer, page, kv.data() + row * 2 * decoder.kv_dim(), scratch);
  }
}

bool IncomingTransfer::Import(const FrameHead& head, const std::uint8_t* payload,
                              SteadyClock::time_point start) {
  const FrameHeader& h = head.header;
  const auto first = static_cast<std::int32_t>(h.token_begin) / kPageRows;
  // Of a block of codes the landing may want but the first pages.
  const auto last =
      std::min(first + static_cast<std::int32_t>(PagesOf(h)), end_row_ / std::int32_t{kPageRows});
  std::shared_ptr<const PrefixLanding> landing;
  std::vector<std::int32_t> pages;
  {
    MutexLock lock(mu_);
    if (closed_) return false;
    landing = landing_;
    for (std::int32_t page = first; page < last; ++page) {
      auto taken = taken_[h.layer][static_cast<std::size_t>(page - landing->first_page)];
      if (!taken) pages.push_back(page);
      taken = true;
    }
    ++importing_;
  }
  if (h.kind == FrameKind::kCodes && run_.contains(static_cast<int>(h.layer))) {
    DecodeStream(*landing, head, payload, pages);
  } else if (h.kind == FrameKind::kCodes) {
    DecodePages(*landing, head, payload, pages);
  } else if (h.kind == FrameKind::kStream) {
    WriteStream(*landing, head, payload, pages);
  } else {
    std::vector<std::byte> scratch;
    for (std::uint32_t kv_head = 0; kv_head < static_cast<std::uint32_t>(kv_heads_); ++kv_head) {
      for (const std::int32_t page : pages) {
        CopyPage(*landing, head, payload, kv_head, page, scratch);
      }
    }
  }
  landing.reset();  // Close's caller may count on being the last holder
  MutexLock lock(mu_);
  pages_missing_ -= static_cast<std::int64_t>(pages.size());
  ++progress_.frames;
  progress_.bytes += h.payload_bytes;
  progress_.import_s += std::chrono::duration<double>(SteadyClock::now() - start).count();
  if (--importing_ == 0) idle_.NotifyAll();
  return true;
}

void IncomingTransfer::Close() {
  std::shared_ptr<PrefixLanding> dropped;  // pages go back outside the lock
  MutexLock lock(mu_);
  closed_ = true;
  idle_.Wait(mu_, [this]() REQUIRES(mu_) { return importing_ == 0; });
  dropped = std::move(landing_);
}

CodeReceiver::CodeReceiver(std::shared_ptr<WorkerPool> workers, MetricRegistry& metrics,
                           std::int64_t max_buffered_bytes)
    : max_buffered_bytes_(max_buffered_bytes), shared_(std::make_shared<Shared>()) {
  shared_->workers = std::move(workers);
  shared_->dropped = metrics.AddCounterFamily("baton_handoff_frames_dropped_total",
                                              "Frames refused or lost, by reason.", {"reason"});
  live_gauge_ = metrics.AddGaugeCallback("baton_handoff_transfers_live", "Hand-offs under way.",
                                         [this] { return double(live_transfers()); });
  buffered_gauge_ = metrics.AddGaugeCallback(
      "baton_handoff_landing_bytes", "Bytes of frames that arrive or wait for import.",
      [shared = shared_] { return double(shared->buffered.load()); });
}

std::shared_ptr<IncomingTransfer> CodeReceiver::Register(const IncomingSpec& spec,
                                                         IncomingCallbacks callbacks) {
  auto transfer = std::make_shared<IncomingTransfer>(spec, std::move(callbacks));
  MutexLock lock(mu_);
  transfers_[spec.transfer_id] = transfer;
  return transfer;
}

void CodeReceiver::Close(const std::shared_ptr<IncomingTransfer>& transfer) {
  {
    MutexLock lock(mu_);
    auto it = transfers_.find(transfer->spec().transfer_id);
    if (it != transfers_.end() && it->second == transfer) transfers_.erase(it);
  }
  transfer->Close();
}

absl::Status CodeReceiver::Drop(const char* reason, const std::string& detail) const {
  shared_->dropped.With({reason}).Increment();
  return absl::InvalidArgumentError(absl::StrCat("frame dropped (", reason, "): ", detail));
}

absl::StatusOr<std::shared_ptr<Landing>> CodeReceiver::OnHeader(std::string_view header,
                                                                std::uint64_t payload_bytes,
                                                                PeerId from) {
  auto head = ParseFrameHead(header);
  if (!head.ok()) return Drop("malformed", std::string(head.status().message()));
  const FrameHeader& h = head->header;
  std::shared_ptr<IncomingTransfer> transfer;
  {
    MutexLock lock(mu_);
    auto it = transfers_.find(h.transfer_id);
    if (it != transfers_.end()) transfer = it->second;
  }
  if (!transfer) return Drop("unknown_transfer", "no transfer of that id is under way");
  if (h.generation != transfer->spec_.generation) {
    return Drop("stale", absl::StrCat("generation ", h.generation, ", expected ",
                                      transfer->spec_.generation));
  }
  if (absl::Status s = VerifyMac(header, transfer->spec_.secret); !s.ok()) {
    return Drop("unauthenticated", std::string(s.message()));
  }
  if (absl::Status s = transfer->CheckHead(*head, payload_bytes); !s.ok()) {
    transfer->callbacks_.on_error(
        absl::DataLossError(absl::StrCat("a frame does not fit the transfer: ", s.message())));
    return Drop("mismatch", std::string(s.message()));
  }
  if (!transfer->Claim(h.sequence)) return Drop("duplicate", absl::StrCat("frame ", h.sequence));
  const auto bytes = static_cast<std::int64_t>(payload_bytes);
  const auto refuse = [&](const std::string& why) {
    transfer->callbacks_.on_error(absl::ResourceExhaustedError(why));
    return Drop("over_limit", why);
  };
  if (shared_->buffered.load() + bytes > max_buffered_bytes_) {
    return refuse(absl::StrCat("buffers would exceed ", max_buffered_bytes_, " bytes"));
  }
  std::optional<FrameBuffer> buffer = shared_->buffers.Take(bytes);
  if (!buffer) return refuse("no memory for the frame");
  shared_->buffered.fetch_add(bytes);
  transfer->last_frame_ns_ = SteadyClock::now().time_since_epoch().count();
  return std::make_shared<FrameLanding>(shared_, std::move(transfer), *std::move(head),
                                        *std::move(buffer));
}

std::size_t CodeReceiver::live_transfers() const {
  MutexLock lock(mu_);
  return transfers_.size();
}

double CodeReceiver::Dropped(const std::string& reason) const {
  return shared_->dropped.With({reason}).Value();
}

}  // namespace baton
