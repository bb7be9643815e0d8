// Frames that do not belong are dropped before a byte lands, by reason; those that do end up in the
// pages, whatever their order.
#include "decode_node/serve/code_receiver.h"

#include <cstring>
#include <random>

#include "common/scd/q4_kv.h"
#include "common/scd/stream_rows.h"
#include "common/wire/frame.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kv_write.h"

namespace baton {
namespace {

constexpr KvPageLayout kLayout{16, DType::kF32};
constexpr int kLayers = 2;
constexpr int kHeads = 2;
constexpr std::int32_t kEnd = 64;
constexpr int kHidden = 24;

struct Message {
  std::string head;
  std::vector<std::uint8_t> payload;
};

class CodeReceiverTest : public ::testing::Test {
 protected:
  CodeReceiverTest()
      : workers_(std::make_shared<WorkerPool>(2)), receiver_(workers_, metrics_, 1 << 20) {
    pool_ = *PagePool::Create(kLayout, kLayers * kHeads * kEnd / kPageRows);
    spec_.transfer_id = 7;
    spec_.generation = 1;
    spec_.secret = *MakeFrameSecret("0123456789abcdef");
    spec_.page_layout = kLayout;
    MakeLanding();
  }
  ~CodeReceiverTest() override { workers_->Stop(); }

  void MakeLanding() {
    landing_ = std::make_shared<PrefixLanding>();
    landing_->layers = kLayers;
    landing_->kv_heads = kHeads;
    landing_->begin = 4;
    landing_->end = kEnd;
    Reservation r = *pool_->Reserve("test", pool_->total_pages());
    for (int i = 0; i < kLayers * kHeads; ++i) {
      landing_->pages.emplace_back();
      for (int p = 0; p < kEnd / kPageRows; ++p) {
        landing_->pages.back().push_back(r.Take());
        std::memset(landing_->pages.back().back().data(), 0xEE, kLayout.page_bytes());
      }
    }
    spec_.landing = landing_;
  }

  std::shared_ptr<IncomingTransfer> Register() {
    return receiver_.Register(spec_, {[this] { ++rows_; },
                                      [this](absl::Status s) {
                                        MutexLock lock(mu_);
                                        errors_.push_back(s);
                                      }});
  }

  // Value of one element: names layer, head, part, row and dimension.
  static float Value(int layer, int head, bool value, int row, int dim) {
    return static_cast<float>(layer * 100000 + head * 50000 + value * 20000 + row * 100 + dim);
  }

  // All but the payload's size and hash.
  static FrameHeader HeaderOf(std::uint32_t sequence, int layer, std::int32_t begin,
                              std::int32_t end) {
    FrameHeader h;
    h.transfer_id = 7;
    h.generation = 1;
    h.layer = static_cast<std::uint32_t>(layer);
    h.token_begin = static_cast<std::uint32_t>(begin);
    h.token_end = static_cast<std::uint32_t>(end);
    h.sequence = sequence;
    return h;
  }

  Message Frame(std::uint32_t sequence, int layer, std::int32_t begin, std::int32_t end) {
    FrameHeader h = HeaderOf(sequence, layer, begin, end);
    std::vector<float> data;
    std::vector<FrameChunk> chunks;
    const std::uint64_t part = (end - begin) / kPageRows * kLayout.k_bytes();
    for (std::uint32_t head = 0; head < kHeads; ++head) {
      for (int value = 0; value < 2; ++value) {
        chunks.push_back({head, value ? ChunkComponent::kValue : ChunkComponent::kKey,
                          data.size() * sizeof(float), part});
        for (int page = begin / kPageRows; page < end / kPageRows; ++page) {
          for (int i = 0; i < kPageRows * kLayout.head_dim; ++i) {
            const int row = value ? i / kLayout.head_dim : i % kPageRows;  // K is transposed
            const int dim = value ? i % kLayout.head_dim : i / kPageRows;
            data.push_back(
                Value(layer, static_cast<int>(head), value, page * kPageRows + row, dim));
          }
        }
      }
    }
    Message m;
    m.payload.resize(data.size() * sizeof(float));
    std::memcpy(m.payload.data(), data.data(), m.payload.size());
    h.payload_bytes = m.payload.size();
    h.payload_hash = HashPayload(
        std::string_view(reinterpret_cast<const char*>(m.payload.data()), m.payload.size()));
    m.head = *EncodeFrameHead(h, chunks, secret_);
    return m;
  }

  // The head of a frame of all heads whose payload is `m.payload`.
  std::string HeadFor(const Message& m, std::uint32_t sequence, int layer, std::int32_t begin,
                      std::int32_t end) {
    FrameHeader h = HeaderOf(sequence, layer, begin, end);
    std::vector<FrameChunk> chunks;
    const std::uint64_t part =
        static_cast<std::uint64_t>((end - begin) / kPageRows) * kLayout.k_bytes();
    for (std::uint32_t i = 0; i < 2 * kHeads; ++i) {
      chunks.push_back(
          {i / 2, i % 2 == 0 ? ChunkComponent::kKey : ChunkComponent::kValue, i * part, part});
    }
    h.payload_bytes = m.payload.size();
    h.payload_hash = HashPayload(
        std::string_view(reinterpret_cast<const char*>(m.payload.data()), m.payload.size()));
    return *EncodeFrameHead(h, chunks, secret_);
  }

  // Codes of random rows, all heads.
  Message Q4Frame(std::uint32_t sequence, int layer, std::int32_t begin, std::int32_t end) {
    const std::size_t groups = static_cast<std::size_t>(end - begin) / kQ4GroupRows;
    const std::size_t key = groups * Q4KeyBytes(kLayout.head_dim);
    const std::size_t value = groups * Q4ValueBytes(kLayout.head_dim);
    std::mt19937 rng(sequence);
    std::normal_distribution<float> normal;
    std::vector<float> pages[2];  // positions, K, V of a page each
    for (auto& page : pages) page.resize(kLayout.page_bytes() / sizeof(float));
    Message m;
    m.payload.resize(kHeads * (key + value));
    std::vector<FrameChunk> chunks;
    for (std::uint32_t head = 0; head < kHeads; ++head) {
      const std::size_t at = head * (key + value);
      chunks.push_back({head, ChunkComponent::kKey, at, key});
      chunks.push_back({head, ChunkComponent::kValue, at + key, value});
      for (std::size_t g = 0; g < groups; ++g) {
        for (auto& page : pages) {
          for (float& x : page) x = normal(rng);
        }
        EncodeQ4(
            kLayout, reinterpret_cast<std::byte*>(pages[0].data()),
            reinterpret_cast<std::byte*>(pages[1].data()), 0,
            reinterpret_cast<std::byte*>(m.payload.data() + at) + g * Q4KeyBytes(kLayout.head_dim),
            reinterpret_cast<std::byte*>(m.payload.data() + at + key) +
                g * Q4ValueBytes(kLayout.head_dim));
      }
    }
    FrameHeader h = HeaderOf(sequence, layer, begin, end);
    h.kind = FrameKind::kQ4Kv;
    h.payload_bytes = m.payload.size();
    h.payload_hash = HashPayload(
        std::string_view(reinterpret_cast<const char*>(m.payload.data()), m.payload.size()));
    m.head = *EncodeFrameHead(h, chunks, secret_);
    return m;
  }

  // Element of a stream's row, exact in fp16 times the row's scale.
  static float StreamValue(int row, int i) { return static_cast<float>((row + 1) * (i - 8)); }

  Message StreamFrame(std::uint32_t sequence, int layer, std::int32_t begin, std::int32_t end) {
    std::vector<float> states;
    for (int row = begin; row < end; ++row) {
      for (int i = 0; i < kHidden; ++i) states.push_back(static_cast<float>(i - 8));
      states.push_back(static_cast<float>(row + 1));
    }
    Message m;
    m.payload.resize(static_cast<std::size_t>(end - begin) * StreamRowBytes(kHidden));
    EncodeStreamRows(states.data(), end - begin, kHidden,
                     reinterpret_cast<std::byte*>(m.payload.data()));
    FrameHeader h = HeaderOf(sequence, layer, begin, end);
    h.kind = FrameKind::kStream;
    h.payload_bytes = m.payload.size();
    h.payload_hash = HashPayload(
        std::string_view(reinterpret_cast<const char*>(m.payload.data()), m.payload.size()));
    m.head = *EncodeFrameHead(h, {{0, ChunkComponent::kRows, 0, h.payload_bytes}}, secret_);
    return m;
  }

  // A landing of which the consumer runs these layers.
  void MakeRun(LayerRun run) {
    landing_->run = run;
    stream_pool_ = *PagePool::Create(kLayout, 8);
    Reservation pages = *stream_pool_->Reserve("stream", 8);
    landing_->stream =
        std::make_shared<PrefixStream>(landing_->begin, kEnd, kHidden, kLayout, pages);
    spec_.coding = Coding::kSelective;
  }

  // As the transport would; the status is the receiver's answer to the header.
  absl::Status Deliver(const Message& m, absl::Status fence = absl::OkStatus()) {
    auto landing = receiver_.OnHeader(m.head, m.payload.size(), 1);
    if (!landing.ok()) return landing.status();
    std::memcpy((*landing)->data(), m.payload.data(), m.payload.size());
    (*landing)->OnComplete(std::move(fence));
    return absl::OkStatus();
  }

  void Settle() {
    for (int i = 0; i < 2000 && receiver_.buffered_bytes() > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(receiver_.buffered_bytes(), 0);
  }

  MetricRegistry metrics_;
  std::shared_ptr<WorkerPool> workers_;
  CodeReceiver receiver_;
  std::shared_ptr<PagePool> pool_;
  std::shared_ptr<PagePool> stream_pool_;
  std::shared_ptr<PrefixLanding> landing_;
  IncomingSpec spec_;
  FrameSecret secret_ = *MakeFrameSecret("0123456789abcdef");
  std::atomic<int> rows_{0};
  Mutex mu_;
  std::vector<absl::Status> errors_;
};

TEST_F(CodeReceiverTest, RowsLandInTheirPagesInAnyOrderAndSinksStay) {
  auto transfer = Register();
  std::vector<Message> frames;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int begin = 0; begin < kEnd; begin += 32) {
      frames.push_back(Frame(static_cast<std::uint32_t>(frames.size()), layer, begin, begin + 32));
    }
  }
  std::shuffle(frames.begin(), frames.end(), std::mt19937(4));
  for (const Message& m : frames) ASSERT_TRUE(Deliver(m).ok());
  Settle();
  EXPECT_TRUE(transfer->progress().complete);
  EXPECT_EQ(transfer->progress().frames, frames.size());
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kHeads; ++head) {
      for (int row = 0; row < kEnd; ++row) {
        const std::byte* page = landing_->pages[layer * kHeads + head][row / kPageRows].data();
        const auto* k = reinterpret_cast<const float*>(page + kLayout.k_offset());
        const auto* v = reinterpret_cast<const float*>(page + kLayout.v_offset());
        for (int d = 0; d < kLayout.head_dim; ++d) {
          const float got_k = k[d * kPageRows + row % kPageRows];
          const float got_v = v[row % kPageRows * kLayout.head_dim + d];
          if (row < 4) {
            std::uint32_t bits;
            std::memcpy(&bits, &got_k, 4);
            EXPECT_EQ(bits, 0xEEEEEEEEu);
          } else {
            ASSERT_EQ(got_k, Value(layer, head, false, row, d)) << layer << head << row;
            ASSERT_EQ(got_v, Value(layer, head, true, row, d)) << layer << head << row;
          }
        }
      }
    }
  }
}

TEST_F(CodeReceiverTest, WhatDoesNotBelongIsDroppedByReason) {
  auto transfer = Register();
  const Message good = Frame(0, 0, 0, 32);
  const auto refused = [&](const Message& m, const char* reason) {
    EXPECT_FALSE(Deliver(m).ok()) << reason;
    EXPECT_EQ(receiver_.Dropped(reason), 1) << reason;
  };
  Message m = good;
  m.head.resize(40);
  refused(m, "malformed");
  m = good;
  m.head[m.head.size() - 1] ^= 1;  // in the chunk table
  EXPECT_FALSE(Deliver(m).ok());

  spec_.transfer_id = 8;
  EXPECT_EQ(receiver_.live_transfers(), 1u);
  const FrameSecret own = secret_;
  secret_ = *MakeFrameSecret("fedcba9876543210");
  refused(Frame(0, 0, 0, 32), "unauthenticated");
  secret_ = own;
  EXPECT_FALSE(Deliver(Frame(0, kLayers, 0, 32)).ok());  // no such layer
  EXPECT_FALSE(Deliver(Frame(0, 0, 48, 80)).ok());       // beyond the end
  Message shorter = good;
  shorter.payload.resize(shorter.payload.size() - 4);  // another length than announced
  EXPECT_FALSE(Deliver(shorter).ok());
  EXPECT_EQ(receiver_.Dropped("mismatch"), 3);

  EXPECT_TRUE(Deliver(good).ok());
  refused(good, "duplicate");
  Settle();
  EXPECT_EQ(transfer->progress().frames, 1u);
  {
    // Only what was signed for this transfer tells it that a frame is lost.
    MutexLock lock(mu_);
    EXPECT_EQ(errors_.size(), 3u);
    for (const absl::Status& s : errors_) EXPECT_EQ(s.code(), absl::StatusCode::kDataLoss) << s;
  }
  receiver_.Close(transfer);
  refused(Frame(1, 0, 32, 64), "unknown_transfer");
}

// Frames are copied side by side, so no two may write one page.
TEST_F(CodeReceiverTest, APageIsWrittenOnce) {
  auto transfer = Register();
  EXPECT_TRUE(Deliver(Frame(0, 0, 0, 32)).ok());
  Settle();
  Message again = Frame(1, 0, 16, 48);  // its first page is in already
  std::memset(again.payload.data(), 0x55, again.payload.size());
  again.head = HeadFor(again, 1, 0, 16, 48);
  EXPECT_TRUE(Deliver(again).ok());
  Settle();
  EXPECT_EQ(transfer->progress().frames, 2u);
  EXPECT_FALSE(transfer->progress().complete);
  const auto first_k = [&](int page) {
    return *reinterpret_cast<const float*>(landing_->pages[0][page].data() + kLayout.k_offset());
  };
  EXPECT_EQ(first_k(1), Value(0, 0, false, kPageRows, 0));
  std::uint32_t bits;
  const float overwritten = first_k(2);
  std::memcpy(&bits, &overwritten, 4);
  EXPECT_EQ(bits, 0x55555555u);
}

TEST_F(CodeReceiverTest, CodesLandDecodedBesideRawRows) {
  spec_.coding = Coding::kQ4;
  auto transfer = Register();
  const Message codes = Q4Frame(0, 1, 0, 32);
  EXPECT_TRUE(Deliver(Frame(1, 1, 32, 64)).ok());
  EXPECT_TRUE(Deliver(codes).ok());
  Settle();
  EXPECT_EQ(transfer->progress().frames, 2u);
  const std::size_t key = Q4KeyBytes(kLayout.head_dim);
  const std::size_t head_bytes = key + Q4ValueBytes(kLayout.head_dim);
  for (int head = 0; head < kHeads; ++head) {
    const auto* at = reinterpret_cast<const std::byte*>(codes.payload.data()) + head * head_bytes;
    for (int p = 0; p < 2; ++p) {
      std::vector<std::byte> want(kLayout.page_bytes());
      DecodeQ4(kLayout, at, at + key, p, want.data() + kLayout.k_offset());
      const std::byte* got = landing_->pages[kHeads + head][p].data();
      for (int row = p == 0 ? 4 : 0; row < kPageRows; ++row) {
        float want_k[16], want_v[16], got_k[16], got_v[16];
        ReadKvRow(kLayout, want.data(), row, want_k, want_v);
        ReadKvRow(kLayout, got, row, got_k, got_v);
        EXPECT_EQ(std::memcmp(want_k, got_k, sizeof(got_k)), 0) << head << p << row;
        EXPECT_EQ(std::memcmp(want_v, got_v, sizeof(got_v)), 0) << head << p << row;
      }
    }
    float k[16], v[16];
    ReadKvRow(kLayout, landing_->pages[kHeads + head][2].data(), 5, k, v);
    EXPECT_EQ(k[3], Value(1, head, false, 37, 3));
    // The sinks are this node's own.
    const std::byte* sinks = landing_->pages[kHeads + head][0].data();
    EXPECT_EQ(sinks[kLayout.v_offset()], std::byte{0xEE});
  }
}

TEST_F(CodeReceiverTest, AStreamLandsForTheLayersThatAreRunHere) {
  MakeRun({0, 1});
  auto transfer = Register();
  EXPECT_TRUE(Deliver(StreamFrame(2, 0, 32, 64)).ok());
  EXPECT_TRUE(Deliver(Frame(0, 1, 0, 64)).ok());
  Settle();
  EXPECT_FALSE(transfer->progress().complete);
  EXPECT_TRUE(Deliver(StreamFrame(1, 0, 0, 32)).ok());
  Settle();
  EXPECT_TRUE(transfer->progress().complete);
  std::vector<float> rows((kEnd - 4) * kHidden);
  landing_->stream->Read(4, kEnd - 4, rows.data());
  for (int row = 4; row < kEnd; ++row) {
    for (int i = 0; i < kHidden; ++i) {
      ASSERT_EQ(rows[static_cast<std::size_t>((row - 4) * kHidden + i)], StreamValue(row, i));
    }
  }
  // Its pages are the engine's to fill.
  EXPECT_EQ(landing_->pages[0][1].data()[kLayout.k_offset()], std::byte{0xEE});
}

TEST_F(CodeReceiverTest, OfARunNothingButItsStreamIsTaken) {
  auto raw = Register();
  EXPECT_FALSE(Deliver(StreamFrame(0, 0, 0, 32)).ok());  // nobody runs a layer
  receiver_.Close(raw);
  MakeRun({0, 2});
  auto transfer = Register();
  EXPECT_FALSE(Deliver(Frame(0, 0, 0, 32)).ok());
  EXPECT_FALSE(Deliver(Frame(0, 1, 0, 32)).ok());
  EXPECT_FALSE(Deliver(StreamFrame(0, 1, 0, 32)).ok());
  EXPECT_FALSE(Deliver(StreamFrame(0, 0, 8, 32)).ok());
  EXPECT_FALSE(Deliver(StreamFrame(0, 0, 0, 80)).ok());
  EXPECT_FALSE(Deliver(Q4Frame(0, 0, 0, 32)).ok());
  // One row too few for the range that the head names.
  Message shorter = StreamFrame(0, 0, 0, 31);
  FrameHeader h = HeaderOf(0, 0, 0, 32);
  h.kind = FrameKind::kStream;
  h.payload_bytes = shorter.payload.size();
  shorter.head = *EncodeFrameHead(h, {{0, ChunkComponent::kRows, 0, h.payload_bytes}}, secret_);
  EXPECT_FALSE(Deliver(shorter).ok());
  EXPECT_EQ(receiver_.Dropped("mismatch"), 8);
  EXPECT_TRUE(Deliver(StreamFrame(0, 0, 0, 64)).ok());
  Settle();
  EXPECT_TRUE(transfer->progress().complete);
}

TEST_F(CodeReceiverTest, CodesNobodyAskedForAndHalfGroupsAreRefused) {
  auto raw = Register();
  EXPECT_FALSE(Deliver(Q4Frame(0, 0, 0, 32)).ok());
  receiver_.Close(raw);
  spec_.coding = Coding::kQ4;
  auto transfer = Register();
  EXPECT_FALSE(Deliver(Q4Frame(0, 0, 16, 48)).ok());
  Message shorter = Q4Frame(0, 0, 0, 32);
  shorter.payload.pop_back();
  EXPECT_FALSE(Deliver(shorter).ok());
  EXPECT_EQ(receiver_.Dropped("mismatch"), 3);
  EXPECT_TRUE(Deliver(Q4Frame(0, 0, 0, 64)).ok());
  Settle();
}

TEST_F(CodeReceiverTest, StaleGenerationIsDropped) {
  spec_.generation = 2;
  auto transfer = Register();
  EXPECT_FALSE(Deliver(Frame(0, 0, 0, 32)).ok());
  EXPECT_EQ(receiver_.Dropped("stale"), 1);
}

TEST_F(CodeReceiverTest, CorruptPayloadAndFailedReceiveTellTheTransfer) {
  auto transfer = Register();
  Message m = Frame(0, 0, 0, 32);
  m.payload[100] ^= 4;
  EXPECT_TRUE(Deliver(m).ok());
  EXPECT_TRUE(Deliver(Frame(1, 0, 32, 64), absl::UnavailableError("peer died")).ok());
  Settle();
  EXPECT_EQ(receiver_.Dropped("corrupt"), 1);
  EXPECT_EQ(receiver_.Dropped("receive_failed"), 1);
  MutexLock lock(mu_);
  EXPECT_EQ(errors_.size(), 2u);
  EXPECT_EQ(transfer->progress().frames, 0u);
}

TEST_F(CodeReceiverTest, NothingIsWrittenAfterCloseAndPagesGoBack) {
  auto transfer = Register();
  const Message m = Frame(0, 0, 0, 32);
  auto landing = receiver_.OnHeader(m.head, m.payload.size(), 1);
  ASSERT_TRUE(landing.ok());
  receiver_.Close(transfer);
  spec_.landing.reset();
  landing_.reset();
  EXPECT_EQ(pool_->GetStats().held, 0);  // the late writer has a buffer of its own
  std::memcpy((*landing)->data(), m.payload.data(), m.payload.size());
  (*landing)->OnComplete(absl::OkStatus());
  landing->reset();
  Settle();
  EXPECT_EQ(receiver_.Dropped("stale"), 1);
  EXPECT_EQ(rows_, 0);
}

TEST_F(CodeReceiverTest, BuffersAreBounded) {
  CodeReceiver small(workers_, metrics_, 100);
  absl::Status error;
  auto transfer = small.Register(spec_, {[] {}, [&](absl::Status s) { error = std::move(s); }});
  const Message m = Frame(0, 0, 0, 32);
  EXPECT_FALSE(small.OnHeader(m.head, m.payload.size(), 1).ok());
  EXPECT_EQ(small.Dropped("over_limit"), 1);
  EXPECT_EQ(error.code(), absl::StatusCode::kResourceExhausted) << error;  // it need not wait
  small.Close(transfer);
}

}  // namespace
}  // namespace baton
