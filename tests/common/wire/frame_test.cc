#include "common/wire/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "common/base/ids.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// Written out by hand after docs/wire_format.md; the two hashes come from python-xxhash.
constexpr const char* kFixture =
    "42544e46"                          // magic "BTNF"
    "0100"                              // version 1
    "0100"                              // kind 1, raw_kv
    "8877665544332211"                  // transfer_id 0x1122334455667788
    "07000000"                          // generation 7
    "03000000"                          // layer 3
    "40000000"                          // token_begin 64
    "80000000"                          // token_end 128
    "05000000"                          // sequence 5
    "1e000000"                          // total_frames 30
    "02000000"                          // chunk_count 2
    "00000000"                          // reserved
    "0a00000000000000"                  // payload_bytes 10
    "5e95d9c4eac23e20"                  // payload_hash
    "cc605fb906a37625f995203511c9b80a"  // mac
    "00000000"
    "01000000"
    "0000000000000000"
    "0400000000000000"  // head 0, key, 0..4
    "02000000"
    "02000000"
    "0400000000000000"
    "0600000000000000";  // head 2, value, 4..10
constexpr std::string_view kPayload = "KKKKVVVVVV";

FrameSecret Secret(uint8_t first = 0) {
  FrameSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(first + i);
  return secret;
}

FrameHeader Header() {
  FrameHeader header;
  header.transfer_id = 0x1122334455667788;
  header.generation = 7;
  header.layer = 3;
  header.token_begin = 64;
  header.token_end = 128;
  header.sequence = 5;
  header.total_frames = 30;
  header.payload_bytes = kPayload.size();
  header.payload_hash = HashPayload(kPayload);
  return header;
}

std::vector<FrameChunk> Chunks() {
  return {{0, ChunkComponent::kKey, 0, 4}, {2, ChunkComponent::kValue, 4, 6}};
}

// Little-endian number written over the encoded head, to make what the encoder refuses to.
template <typename T>
std::string Patched(std::string bytes, size_t at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    bytes[at + i] = static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  }
  return bytes;
}

TEST(FrameTest, EncodesTheDocumentedBytes) {
  const auto head = EncodeFrameHead(Header(), Chunks(), Secret());
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(HexEncode(*head), kFixture);
}

TEST(FrameTest, ReadsTheDocumentedBytes) {
  const std::string bytes = *HexDecode(kFixture);
  const auto head = ParseFrameHead(bytes);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->header, Header());
  EXPECT_EQ(head->chunks, Chunks());
  EXPECT_EQ(head->head_bytes, bytes.size());
  EXPECT_TRUE(VerifyMac(bytes, Secret()).ok());
  EXPECT_TRUE(VerifyPayload(head->header, kPayload).ok());
}

TEST(FrameTest, PayloadMayFollowTheHead) {
  const std::string bytes = *HexDecode(kFixture) + std::string(kPayload);
  const auto head = ParseFrameHead(bytes);
  ASSERT_TRUE(head.ok());
  EXPECT_TRUE(VerifyMac(bytes, Secret()).ok());
  EXPECT_TRUE(VerifyPayload(head->header, std::string_view(bytes).substr(head->head_bytes)).ok());
}

TEST(FrameTest, ScatteredPayloadHashesAsOne) {
  const std::string_view pieces[] = {kPayload.substr(0, 3), "", kPayload.substr(3)};
  EXPECT_EQ(HashPayload(pieces), HashPayload(kPayload));
  EXPECT_TRUE(VerifyPayload(Header(), pieces).ok());
}

TEST(FrameTest, ErrorFrameRoundTrip) {
  const std::string_view message = "out of pages";
  FrameHeader header;
  header.kind = FrameKind::kError;
  header.transfer_id = 9;
  header.payload_bytes = message.size();
  header.payload_hash = HashPayload(message);
  const std::vector<FrameChunk> chunks = {{0, ChunkComponent::kText, 0, message.size()}};
  const auto bytes = EncodeFrameHead(header, chunks, Secret());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(ParseFrameHead(*bytes)->header, header);
  header.payload_bytes = 0;
  header.payload_hash = HashPayload(std::string_view());
  EXPECT_TRUE(EncodeFrameHead(header, {}, Secret()).ok());
}

TEST(FrameTest, CodesAreDescribedAsRowsAre) {
  FrameHeader header = Header();
  header.kind = FrameKind::kQ4Kv;
  const auto bytes = EncodeFrameHead(header, Chunks(), Secret());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(ParseFrameHead(*bytes)->header, header);
  std::vector<FrameChunk> text = Chunks();
  text[1].component = ChunkComponent::kText;
  EXPECT_FALSE(EncodeFrameHead(header, text, Secret()).ok());
  EXPECT_FALSE(EncodeFrameHead(header, {}, Secret()).ok());
  header.kind = static_cast<FrameKind>(4);
  EXPECT_FALSE(EncodeFrameHead(header, Chunks(), Secret()).ok());
}

TEST(FrameTest, AStreamHasRowsAndNothingElse) {
  FrameHeader header = Header();
  header.kind = FrameKind::kStream;
  const FrameChunk rows{0, ChunkComponent::kRows, 0, header.payload_bytes};
  const auto bytes = EncodeFrameHead(header, {rows}, Secret());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto head = ParseFrameHead(*bytes);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->header, header);
  EXPECT_EQ(head->chunks[0], rows);
  EXPECT_FALSE(EncodeFrameHead(header, Chunks(), Secret()).ok());
  header.kind = FrameKind::kRawKv;
  EXPECT_FALSE(EncodeFrameHead(header, {rows}, Secret()).ok());
}

TEST(FrameTest, EveryTruncationIsRefused) {
  const std::string bytes = *HexDecode(kFixture);
  for (size_t n = 0; n < bytes.size(); ++n) {
    const std::string cut = bytes.substr(0, n);  // own buffer, so ASan sees any read past it
    EXPECT_EQ(ParseFrameHead(cut).status().code(), absl::StatusCode::kDataLoss) << n;
    EXPECT_FALSE(VerifyMac(cut, Secret()).ok()) << n;
  }
}

TEST(FrameTest, EveryBitFlipInTheHeadIsDetected) {
  const std::string bytes = *HexDecode(kFixture);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const bool accepted = ParseFrameHead(flipped).ok() && VerifyMac(flipped, Secret()).ok();
    EXPECT_FALSE(accepted) << "bit " << bit;
  }
}

TEST(FrameTest, EveryBitFlipInThePayloadIsDetected) {
  for (size_t bit = 0; bit < kPayload.size() * 8; ++bit) {
    std::string payload(kPayload);
    payload[bit / 8] = static_cast<char>(payload[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(VerifyPayload(Header(), payload).code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_FALSE(VerifyPayload(Header(), kPayload.substr(1)).ok());
}

TEST(FrameTest, AnotherTransfersSecretIsRefused) {
  const std::string bytes = *HexDecode(kFixture);
  const absl::Status status = VerifyMac(bytes, Secret(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), HasSubstr("mac"));
  EXPECT_FALSE(MakeFrameSecret("short").ok());
  EXPECT_EQ(*MakeFrameSecret(std::string("\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16\17", 16)),
            Secret());
}

TEST(FrameTest, HostileFieldsAreRefusedByName) {
  const std::string good = *HexDecode(kFixture);
  struct Case {
    std::string bytes;
    const char* field;
  };
  const size_t table = kFrameHeaderBytes;
  const std::vector<Case> cases = {
      {Patched<uint32_t>(good, 0, 0), "magic"},
      {Patched<uint16_t>(good, 4, 2), "version"},
      {Patched<uint16_t>(good, 6, 0), "kind"},
      {Patched<uint16_t>(good, 6, 77), "kind"},
      {Patched<uint16_t>(good, 6, 2), "component"},  // an error frame holds text only
      {Patched<uint64_t>(good, 8, 0), "transfer_id"},
      {Patched<uint32_t>(good, 20, kMaxFrameLayers), "layer"},
      {Patched<uint32_t>(good, 24, 128), "token_begin"},
      {Patched<uint32_t>(good, 24, UINT32_MAX), "token_begin"},
      {Patched<uint32_t>(good, 28, UINT32_MAX), "token_end"},
      {Patched<uint32_t>(good, 32, 30), "sequence"},
      {Patched<uint32_t>(good, 36, UINT32_MAX), "total_frames"},
      {Patched<uint32_t>(good, 40, 0), "chunk_count"},
      {Patched<uint32_t>(good, 40, 1), "payload_bytes"},
      {Patched<uint32_t>(good, 40, 3), "chunk table"},
      {Patched<uint32_t>(good, 40, UINT32_MAX), "chunk_count"},
      {Patched<uint32_t>(good, 44, 1), "reserved"},
      {Patched<uint64_t>(good, 48, 0), "payload_bytes"},
      {Patched<uint64_t>(good, 48, 11), "payload_bytes"},
      {Patched<uint64_t>(good, 48, UINT64_MAX), "payload_bytes"},
      {Patched<uint32_t>(good, table, kMaxFrameKvHeads), "chunk[0].kv_head"},
      {Patched<uint32_t>(good, table + 4, 0), "chunk[0].component"},
      {Patched<uint32_t>(good, table + 4, 3), "chunk[0].component"},
      {Patched<uint64_t>(good, table + 8, 1), "chunk[0].offset"},
      {Patched<uint64_t>(good, table + 16, 0), "chunk[0].length"},
      {Patched<uint64_t>(good, table + 16, UINT64_MAX), "chunk[0].length"},
      {Patched<uint64_t>(good, table + 24 + 8, 3), "chunk[1].offset"},
      {Patched<uint64_t>(good, table + 24 + 8, UINT64_MAX - 2), "chunk[1].offset"},
      {Patched<uint64_t>(good, table + 24 + 16, 7), "chunk[1].length"},
      {Patched<uint64_t>(good, table + 24 + 16, 5), "payload_bytes"},
  };
  for (const Case& c : cases) {
    const auto head = ParseFrameHead(c.bytes);
    ASSERT_FALSE(head.ok()) << c.field;
    EXPECT_THAT(std::string(head.status().message()), HasSubstr(c.field));
  }
}

TEST(FrameTest, TotalFramesMayBeUnknown) {
  FrameHeader header = Header();
  header.total_frames = 0;
  header.sequence = 123;
  EXPECT_TRUE(EncodeFrameHead(header, Chunks(), Secret()).ok());
  header.sequence = kMaxTransferFrames;
  EXPECT_FALSE(EncodeFrameHead(header, Chunks(), Secret()).ok());
}

TEST(FrameTest, EncoderRefusesWhatTheParserWould) {
  const std::vector<std::function<void(FrameHeader&, std::vector<FrameChunk>&)>> changes = {
      [](FrameHeader& h, auto&) { h.transfer_id = 0; },
      [](FrameHeader& h, auto&) { h.token_begin = h.token_end; },
      [](FrameHeader& h, auto&) { h.payload_bytes = kMaxFramePayloadBytes + 1; },
      [](FrameHeader&, auto& c) { c.clear(); },
      [](FrameHeader&, auto& c) { c.resize(kMaxFrameChunks + 1); },
      [](FrameHeader&, auto& c) { c[1].offset = 5; },
      [](FrameHeader&, auto& c) { c[1].length = 5; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    FrameHeader header = Header();
    std::vector<FrameChunk> chunks = Chunks();
    changes[i](header, chunks);
    EXPECT_EQ(EncodeFrameHead(header, chunks, Secret()).status().code(),
              absl::StatusCode::kInvalidArgument)
        << i;
  }
}

TEST(FrameTest, RandomBytesNeverCrash) {
  std::mt19937_64 random(7);
  const std::string good = *HexDecode(kFixture);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good.substr(0, random() % (good.size() + 1));
    for (int flips = static_cast<int>(random() % 8); flips > 0 && !bytes.empty(); --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const auto head = ParseFrameHead(bytes);
    if (!head.ok()) continue;
    uint64_t covered = 0;
    for (const FrameChunk& chunk : head->chunks) covered += chunk.length;
    EXPECT_EQ(covered, head->header.payload_bytes);
  }
}

}  // namespace
}  // namespace baton
